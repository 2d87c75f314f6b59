"""Trains Stable-Baselines3's PPO on Gymnasium's Pendulum-v1, only from starts near upright, and writes its deterministic policy as ONNX.

    pip install stable-baselines3 gymnasium onnx onnxscript
    python train_ppo_pendulum.py

The file beside it, ppo_pendulum.onnx, was made this way; `offspan audit ppo_pendulum.toml` says where that policy fails.
"""

from pathlib import Path

import gymnasium
import torch  # pyright: ignore[reportMissingImports]
from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.env_util import make_vec_env  # pyright: ignore[reportMissingImports]

NEAR = {"x_init": 0.3, "y_init": 0.0}  # starts at rest, within ±0.3 rad of upright


class NearUpright(gymnasium.Wrapper):
    def reset(self, *, seed=None, options=None):
        return self.env.reset(seed=seed, options=NEAR)


class Deterministic(torch.nn.Module):
    """The mean of the action's distribution, before it is clipped to the bounds of the torque."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, observation):
        features = self.policy.extract_features(observation, self.policy.pi_features_extractor)
        return self.policy.action_net(self.policy.mlp_extractor.forward_actor(features))


if __name__ == "__main__":
    torch.set_num_threads(1)
    envs = make_vec_env("Pendulum-v1", n_envs=4, seed=0, wrapper_class=NearUpright)
    model = PPO("MlpPolicy", envs, seed=0, gamma=0.9, learning_rate=1e-3, n_steps=1024, use_sde=False, verbose=1, device="cpu")
    model.learn(200_000)
    policy = Deterministic(model.policy).eval()
    target = Path(__file__).with_name("ppo_pendulum.onnx")
    torch.onnx.export(policy, (torch.zeros(1, 3),), str(target), dynamo=False, input_names=["observation"], output_names=["action"])

"""Policy gradient: from a problem, a controller and the seen states to a learned controller."""

from offspan.training.batch import Batch as Batch
from offspan.training.batch import BatchState as BatchState
from offspan.training.batch import Run as Run
from offspan.training.diagnosis import Diagnosis as Diagnosis
from offspan.training.diagnosis import diagnose as diagnose
from offspan.training.loop import CostBelow as CostBelow
from offspan.training.loop import NoImprovement as NoImprovement
from offspan.training.loop import Status as Status
from offspan.training.loop import StoppingRule as StoppingRule
from offspan.training.lqr import LQRRun as LQRRun
from offspan.training.lqr import train_lqr as train_lqr
from offspan.training.lqr_batch import LQRBatch as LQRBatch
from offspan.training.lqr_batch import train_lqr_batch as train_lqr_batch
from offspan.training.policy_gradient import train as train
from offspan.training.policy_gradient import train_batch as train_batch

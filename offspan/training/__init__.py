"""Policy gradient: from a problem, a controller and the seen states to a learned controller."""

from offspan.training.batch import Batch as Batch
from offspan.training.batch import Run as Run
from offspan.training.diagnosis import Diagnosis as Diagnosis
from offspan.training.diagnosis import diagnose as diagnose
from offspan.training.estimators import Adjoint as Adjoint
from offspan.training.estimators import Estimate as Estimate
from offspan.training.estimators import Estimator as Estimator
from offspan.training.estimators import Exact as Exact
from offspan.training.estimators import GradientQuality as GradientQuality
from offspan.training.estimators import Reinforce as Reinforce
from offspan.training.estimators import TwoPoint as TwoPoint
from offspan.training.estimators import gradient_quality as gradient_quality
from offspan.training.lqr_sweep import train_lqr_batch as train_lqr_batch
from offspan.training.stopping import CostBelow as CostBelow
from offspan.training.stopping import NoImprovement as NoImprovement
from offspan.training.stopping import Status as Status
from offspan.training.stopping import StoppingRule as StoppingRule
from offspan.training.train import train as train
from offspan.training.train import train_batch as train_batch
from offspan.training.train import train_lqr as train_lqr

"""What is controlled."""

from offspan.problems.base import BlackBox as BlackBox
from offspan.problems.base import FunctionProblem as FunctionProblem
from offspan.problems.base import Problem as Problem
from offspan.problems.lqr import LQR as LQR
from offspan.problems.lqr import gaussian as gaussian
from offspan.problems.lqr import gaussian_abq as gaussian_abq
from offspan.problems.lqr import identity as identity
from offspan.problems.lqr import shift as shift
from offspan.problems.pendulum import Pendulum as Pendulum
from offspan.problems.quadcopter import Quadcopter as Quadcopter
from offspan.problems.variants import Noisy as Noisy

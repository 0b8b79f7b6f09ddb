"""A cluster in virtual time: `SimCluster` holds the objects in memory, `SimWorld` drives them."""

from edl_controller.cluster.sim.cluster import SimCluster
from edl_controller.cluster.sim.pod_course import PodCourse
from edl_controller.cluster.sim.timetable import Timetable, VirtualClock
from edl_controller.cluster.sim.world import SimWorld

__all__ = ["PodCourse", "SimCluster", "SimWorld", "Timetable", "VirtualClock"]

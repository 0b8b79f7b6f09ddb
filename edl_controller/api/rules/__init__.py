"""PURE: the rules of a TrainingJob, by what they are about; `edl_controller.api.validation` asks them all."""

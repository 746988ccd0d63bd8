from stub_fixtures import nvml_library, nvml_state, start_child

__all__ = ["nvml_library", "nvml_state", "start_child"]

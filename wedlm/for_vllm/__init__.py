"""WeDLM in vLLM: the export of a checkpoint as a target and its drafter, and the plugin with the drafter's classes."""

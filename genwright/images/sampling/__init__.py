"""From noise to images: samplers, schedules, random streams, editing, and the files that are written."""

"""One model over several processes: their layout, launch, process groups, and the watchdog that ends them together."""

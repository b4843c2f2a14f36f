"""Everything that touches a device: backends, measurement, executor, gRPC service."""

"""The docker and podman backend.

`backend` launches and probes; `connection` finds or starts an engine; `hardening` is the
container's whole configuration; `sandbox` and `stream` run one container. `endpoints`, `service`
and `machine` say where engines listen, `faults` what their errors mean.
"""

module sluice.dev/tests/cluster/operators

go 1.26.0

require github.com/kubeflow/training-operator v1.9.3

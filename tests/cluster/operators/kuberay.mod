module sluice.dev/tests/cluster/operators

go 1.26.0

require github.com/ray-project/kuberay/ray-operator v1.6.2

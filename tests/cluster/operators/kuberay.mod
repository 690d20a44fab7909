module sluice.dev/tests/cluster/operators

go 1.26.0

require github.com/ray-project/kuberay/ray-operator v1.6.2

require (
	k8s.io/api v0.36.2
	k8s.io/apimachinery v0.36.2
	k8s.io/apiserver v0.36.2
	k8s.io/client-go v0.36.2
	k8s.io/component-base v0.36.2
)

module sluice.dev/tests/cluster/operators

go 1.26.0

require (
	github.com/kubeflow/mpi-operator v0.8.2
	github.com/kubeflow/trainer/v2 v2.2.1
	github.com/project-codeflare/appwrapper v1.2.2
	sigs.k8s.io/jobset v0.12.0
	sigs.k8s.io/lws v0.9.0
)

require github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus v1.1.1 // indirect

//go:build tools

// Package ctk pins the module of NVIDIA's nvidia-ctk, whose command tests/clients builds and runs as it is.
package ctk

import _ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk"

//go:build tools

// Package device_plugin pins the module of NVIDIA's device plugin, whose command tests/clients builds and runs as it is.
package device_plugin

import _ "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"

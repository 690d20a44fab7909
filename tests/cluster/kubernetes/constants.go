package main

import (
	"encoding/json"
	"os"
	"sort"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	_ "k8s.io/kubernetes/pkg/features" // registers the gates
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
)

// printConstants writes what Sluice and its documents rely on, as this release has it: one JSON object.
func printConstants() {
	gates := []string{}
	for name := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		gates = append(gates, string(name))
	}
	sort.Strings(gates)
	values := map[string]any{
		"device_plugin_directory": deviceplugin.DevicePluginPath,
		"device_plugin_socket":    deviceplugin.KubeletSocket,
		"device_plugin_version":   deviceplugin.Version,
		"pod_resources_socket":    podresources.Socket + ".sock",
		"gates":                   gates,
	}
	for name, value := range podsAPI() {
		values[name] = value
	}
	if err := json.NewEncoder(os.Stdout).Encode(values); err != nil {
		os.Exit(1)
	}
}

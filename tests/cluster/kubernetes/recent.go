//go:build !kubernetes_1_30

package main

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet/apis/pods"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig"
)

func kubeletCommand() *cobra.Command { return app.NewKubeletCommand(context.Background()) }

func podsAPI() map[string]string {
	return map[string]string{
		"pods_api_directory": kubeletconfig.DefaultKubeletPodsAPIDirName,
		"pods_api_socket":    pods.Socket + ".sock", // pkg/kubelet/util.LocalEndpoint adds the ending
		"pods_api_gate":      string(features.PodsAPI),
	}
}

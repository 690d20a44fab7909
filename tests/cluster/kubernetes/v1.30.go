//go:build kubernetes_1_30

package main

import (
	"github.com/spf13/cobra"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func kubeletCommand() *cobra.Command { return app.NewKubeletCommand() }

// There is none in this release.
func podsAPI() map[string]string { return nil }

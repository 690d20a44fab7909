// Command drapeer is the kubelet's own plugin watcher and manager of DRA drivers, without the rest
// of a kubelet: it registers each driver in DIRECTORY/plugins_registry and follows the health of its
// devices, until standard input ends. What the kubelet logs goes to standard error, and the healths
// that it knows to DIRECTORY/state/dra_health_state.
//
//	drapeer DIRECTORY FEATURE_GATES
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "drapeer:", err)
		os.Exit(1)
	}
}

func run(directory, gates string) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", "4"); err != nil {
		return err
	}
	if err := utilfeature.DefaultMutableFeatureGate.Set(gates); err != nil {
		return err
	}
	registry, state := filepath.Join(directory, "plugins_registry"), filepath.Join(directory, "state")
	for _, one := range []string{registry, state} {
		if err := os.MkdirAll(one, 0o750); err != nil {
			return err
		}
	}
	ctx := context.Background()
	manager, err := dra.NewManager(klog.Background(), nil, state)
	if err != nil {
		return err
	}
	pods := func() []*v1.Pod { return nil }
	node := func(context.Context) (*v1.Node, error) { return nil, errors.New("there is no API server") }
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := manager.Start(ctx, pods, node, ready); err != nil {
		return err
	}
	plugins := pluginmanager.NewPluginManager(registry, record.NewFakeRecorder(100))
	plugins.AddHandler(registration.DRAPlugin, manager.GetWatcherHandler())
	go plugins.Run(ctx, ready, ctx.Done())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

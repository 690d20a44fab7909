// SPDX-License-Identifier: Apache-2.0

// Admits pods by the kubelet's own Topology, CPU, memory and device managers on a machine that is described on stdin, and prints for each pod
// what was free on the NUMA nodes before it, whether it was admitted, and where. It needs a /var/lib/kubelet/device-plugins of its own.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	plugin "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

const gpu = "nvidia.com/gpu"

type machine struct {
	Policy, Scope string
	Zones         []struct {
		CPUs      int
		MemoryGiB int
		Devices   int
	}
	Pods []v1.Pod
}

type zone struct {
	CPUs        int   `json:"cpus"`
	FreeCPUs    int   `json:"free_cpus"`
	Memory      int64 `json:"memory"`
	FreeMemory  int64 `json:"free_memory"`
	Devices     int   `json:"devices"`
	FreeDevices int   `json:"free_devices"`
}

type verdict struct {
	Zones    []zone           `json:"zones"`
	Admitted bool             `json:"admitted"`
	Reason   string           `json:"reason"`
	Message  string           `json:"message"`
	Numa     map[string][]int `json:"numa_nodes"`
}

type always struct{}

func (always) AddSource(string)                            {}
func (always) AllReady() bool                              { return true }
func (always) GetPodStatus(types.UID) (v1.PodStatus, bool) { return v1.PodStatus{}, false }
func (always) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	flags := flag.NewFlagSet("", flag.PanicOnError)
	klog.InitFlags(flags)
	check(flags.Parse([]string{"-logtostderr=false", "-alsologtostderr=false", "-stderrthreshold=FATAL"}))
	klog.SetOutput(io.Discard)
	var given machine
	check(json.NewDecoder(os.Stdin).Decode(&given))
	check(json.NewEncoder(os.Stdout).Encode(given.admit()))
}

func (m *machine) info() *cadvisorapi.MachineInfo {
	info := &cadvisorapi.MachineInfo{}
	thread := 0
	for id, one := range m.Zones {
		node := cadvisorapi.Node{Id: id, Memory: uint64(one.MemoryGiB) << 30}
		for range one.CPUs {
			core := cadvisorapi.Core{Id: thread, Threads: []int{thread}, SocketID: id}
			node.Cores = append(node.Cores, core)
			thread++
		}
		info.NumCores += one.CPUs
		info.NumPhysicalCores += one.CPUs
		info.NumSockets++
		info.MemoryCapacity += node.Memory
		info.Topology = append(info.Topology, node)
	}
	return info
}

func (m *machine) admit() []verdict {
	logger, ctx := logr.Discard(), context.Background()
	ctx = klog.NewContext(ctx, logger)
	info := m.info()
	reserved := v1.ResourceList{
		v1.ResourceCPU:    resource.MustParse("1"),
		v1.ResourceMemory: resource.MustParse("1Gi"),
	}
	state := must(os.MkdirTemp("", "kubelet"))
	manager := must(topologymanager.NewManager(info.Topology, m.Policy, m.Scope, nil))
	cpus := must(cpumanager.NewManager(logger, "static", nil, time.Hour, info, cpuset.New(0), reserved, state, manager))
	ofMemory := []kubeletconfig.MemoryReservation{{NumaNode: 0, Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}}
	memory := must(memorymanager.NewManager(logger, "Static", info, reserved, ofMemory, state, manager))
	devices := must(devicemanager.NewManagerImpl(info.Topology, manager))
	var active []*v1.Pod
	pods := func() []*v1.Pod { return active }
	empty := containermap.NewContainerMap()
	check(cpus.Start(ctx, pods, always{}, always{}, always{}, empty))
	check(memory.Start(ctx, pods, always{}, always{}, always{}, empty))
	check(devices.Start(logger, pods, always{}, empty, sets.New[string]()))
	m.serve(ctx, logger, devices)
	for _, one := range []topologymanager.HintProvider{devices, cpus, memory} {
		manager.AddHintProvider(logger, one)
	}
	var found []verdict
	for i := range m.Pods {
		pod := &m.Pods[i]
		one := verdict{Zones: m.free(cpus, memory, devices, active), Numa: map[string][]int{}}
		active = append(active, pod) // As in the kubelet: what is not active is freed.
		result := manager.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
		one.Admitted, one.Reason, one.Message = result.Admit, result.Reason, result.Message
		if !result.Admit {
			active = active[:len(active)-1]
		} else {
			for _, each := range append(append([]v1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
				if hint := manager.GetAffinity(string(pod.UID), each.Name); hint.NUMANodeAffinity != nil {
					one.Numa[each.Name] = hint.NUMANodeAffinity.GetBits()
				}
			}
		}
		found = append(found, one)
	}
	return found
}

func (m *machine) serve(ctx context.Context, logger logr.Logger, manager *devicemanager.ManagerImpl) {
	var every []*pluginapi.Device
	for id, one := range m.Zones {
		for n := range one.Devices {
			at := &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(id)}}}
			every = append(every, &pluginapi.Device{ID: fmt.Sprintf("%d-%d", id, n), Health: pluginapi.Healthy, Topology: at})
		}
	}
	socket := filepath.Join(pluginapi.DevicePluginPath, "stub.sock")
	stub := plugin.NewDevicePluginStub(logger, every, socket, gpu, false, false)
	stub.SetAllocFunc(func(asked *pluginapi.AllocateRequest, _ map[string]*pluginapi.Device) (*pluginapi.AllocateResponse, error) {
		answer := &pluginapi.AllocateResponse{}
		for range asked.ContainerRequests {
			answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
		}
		return answer, nil
	})
	check(stub.Start(ctx))
	check(stub.Register(ctx, pluginapi.KubeletSocket, gpu, pluginapi.DevicePluginPath))
	for range 200 {
		if len(manager.GetAllocatableDevices()[gpu]) == len(every) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	panic("the devices were not registered")
}

func (m *machine) free(cpus cpumanager.Manager, memory memorymanager.Manager, devices *devicemanager.ManagerImpl, active []*v1.Pod) []zone {
	found := make([]zone, len(m.Zones))
	inUse := cpuset.New()
	for _, pod := range active {
		for _, one := range pod.Spec.Containers {
			uid := string(pod.UID)
			inUse = inUse.Union(cpus.GetExclusiveCPUs(uid, one.Name))
			for _, block := range memory.GetMemory(uid, one.Name) {
				for _, id := range block.NUMAAffinity {
					if len(block.NUMAAffinity) == 1 {
						found[id].FreeMemory -= int64(block.Size)
					}
				}
			}
			for id := range devices.GetDevices(uid, one.Name)[gpu] {
				at := must(strconv.Atoi(id[:1]))
				found[at].FreeDevices--
			}
		}
	}
	free := cpus.GetAllocatableCPUs().Difference(inUse)
	thread := 0
	for id, one := range m.Zones {
		found[id].CPUs, found[id].Devices = one.CPUs, one.Devices
		found[id].FreeDevices += one.Devices
		for range one.CPUs {
			if free.Contains(thread) {
				found[id].FreeCPUs++
			}
			thread++
		}
	}
	for _, block := range memory.GetAllocatableMemory() {
		for _, id := range block.NUMAAffinity {
			found[id].Memory += int64(block.Size)
			found[id].FreeMemory += int64(block.Size)
		}
	}
	return found
}

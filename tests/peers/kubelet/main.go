// Command kubeletpeer is the kubelet's own device manager and PodResources server, without the
// rest of a kubelet: one JSON command per line on standard input, one JSON answer per line on
// standard output. Tests use it in the place of our fake kubelet, which must behave alike.
//
// The device manager has its socket at a fixed path, /var/lib/kubelet/device-plugins, so this
// program runs in a mount namespace of its own; see tests/peers/test_kubelet.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/apis/pods"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig"
	"k8s.io/kubernetes/pkg/kubelet/util"
)

const podResourcesSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// command is what a test asks for. Pods are named by their UID after `admit`.
type command struct {
	Do        string            `json:"do"`
	UID       string            `json:"uid"`
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Init      []containerAsk    `json:"init"`
	App       []containerAsk    `json:"app"`
	Container string            `json:"container"`
	Count     int               `json:"count"`
	Labels    map[string]string `json:"labels"`
}

// containerAsk is one container and its extended resources.
type containerAsk struct {
	Name    string           `json:"name"`
	Limits  map[string]int64 `json:"limits"`
	Sidecar bool             `json:"sidecar"`
}

// answer carries what the kubelet would hand to the runtime, or why it would not.
type answer struct {
	Error       string              `json:"error,omitempty"`
	CDI         []string            `json:"cdi,omitempty"`
	Env         map[string]string   `json:"env,omitempty"`
	Mounts      []string            `json:"mounts,omitempty"`
	Devices     []string            `json:"devices,omitempty"`
	Annotations map[string]string   `json:"annotations,omitempty"`
	Capacity    map[string]int64    `json:"capacity,omitempty"`
	Allocatable map[string]int64    `json:"allocatable,omitempty"`
	Held        map[string][]string `json:"held,omitempty"`
	Places      map[string]string   `json:"places,omitempty"`
	Seconds     float64             `json:"seconds"`
}

// kubelet is what remains of one over a restart: its pods.
type kubelet struct {
	mutex   sync.Mutex
	pods    []*v1.Pod
	manager *devicemanager.ManagerImpl
	server  *grpc.Server
	running sets.Set[string]
}

func main() {
	// The checkpoint and the sockets are the test's; a kubelet of this machine is not ours to touch.
	if _, err := os.Stat("/var/lib/kubelet/.sluice-peer"); err != nil {
		fmt.Fprintln(os.Stderr, "kubeletpeer: /var/lib/kubelet/.sluice-peer is missing: not in a namespace of its own")
		os.Exit(2)
	}
	k := &kubelet{running: sets.New[string]()}
	if err := k.start(); err != nil {
		fmt.Fprintln(os.Stderr, "kubeletpeer:", err)
		os.Exit(1)
	}
	out := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c command
		began := time.Now()
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			a = answer{Error: err.Error()}
		} else {
			a = k.handle(c)
		}
		a.Seconds = time.Since(began).Seconds()
		if err := out.Encode(a); err != nil {
			os.Exit(1)
		}
	}
}

// start is a kubelet coming up: its device manager wipes the sockets, reads the checkpoint, listens.
func (k *kubelet) start() error {
	topology := []cadvisorapi.Node{{Id: 0}, {Id: 1}}
	manager, err := devicemanager.NewManagerImpl(topology, topologymanager.NewFakeManager())
	if err != nil {
		return err
	}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := manager.Start(klog.Background(), k.GetActivePods, ready, containermap.NewContainerMap(), k.running); err != nil {
		return err
	}
	k.manager = manager
	return k.servePodResources()
}

func (k *kubelet) servePodResources() error {
	if err := os.MkdirAll(filepath.Dir(podResourcesSocket), 0o750); err != nil {
		return err
	}
	_ = os.Remove(podResourcesSocket)
	listener, err := net.Listen("unix", podResourcesSocket)
	if err != nil {
		return err
	}
	k.server = grpc.NewServer()
	podresourcesapi.RegisterPodResourcesListerServer(k.server, podresources.NewV1PodResourcesServer(
		context.Background(),
		podresources.PodResourcesProviders{Pods: k, Devices: k, Cpus: none{}, Memory: none{}, DynamicResources: none{}},
	))
	go func() { _ = k.server.Serve(listener) }()
	return nil
}

// places are where this kubelet serves what the daemon asks it, and what the feature behind it is called. A kubelet
// refuses to start with a gate that it does not know.
func places() answer {
	endpoint, err := util.LocalEndpoint(kubeletconfig.DefaultKubeletPodsAPIDirName, pods.Socket)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Places: map[string]string{
		"pods": strings.TrimPrefix(endpoint, "unix:"), "gate": string(features.PodsAPI),
		"plugins": pluginapi.KubeletSocket,
	}}
}

func (k *kubelet) handle(c command) answer {
	switch c.Do {
	case "admit":
		return k.admit(c)
	case "run":
		return k.run(c)
	case "remove":
		k.remove(c.UID)
		return answer{}
	case "capacity":
		return k.capacity()
	case "places":
		return places()
	case "restart":
		k.server.Stop()
		if err := k.manager.Stop(klog.Background()); err != nil {
			return answer{Error: err.Error()}
		}
		return refusal(k.start())
	}
	return answer{Error: fmt.Sprintf("no command %q", c.Do)}
}

// admit allocates for every container, init containers first, as pod admission does. A pod that is
// refused is not active afterwards.
func (k *kubelet) admit(c command) answer {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(c.UID), Namespace: c.Namespace, Name: c.Name}}
	for _, ask := range c.Init {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container(ask))
	}
	for _, ask := range c.App {
		pod.Spec.Containers = append(pod.Spec.Containers, container(ask))
	}
	k.mutex.Lock()
	k.pods = append(k.pods, pod)
	k.mutex.Unlock()
	for _, one := range append(append([]v1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		if err := k.manager.Allocate(pod, &one); err != nil {
			k.remove(c.UID)
			return answer{Error: err.Error()}
		}
	}
	return answer{}
}

// run is what happens before every start of a container: PreStartContainer, then the edits.
func (k *kubelet) run(c command) answer {
	pod, one := k.find(c.UID, c.Container)
	if one == nil {
		return answer{Error: fmt.Sprintf("no container %s in pod %s", c.Container, c.UID)}
	}
	options, err := k.manager.GetDeviceRunContainerOptions(context.Background(), pod, one)
	if err != nil {
		return answer{Error: err.Error()}
	}
	a := answer{Env: map[string]string{}, Annotations: map[string]string{}, Held: map[string][]string{}}
	if options != nil {
		for _, device := range options.CDIDevices {
			a.CDI = append(a.CDI, device.Name)
		}
		for _, env := range options.Envs {
			a.Env[env.Name] = env.Value
		}
		for _, mount := range options.Mounts {
			a.Mounts = append(a.Mounts, mount.HostPath+":"+mount.ContainerPath)
		}
		for _, device := range options.Devices {
			a.Devices = append(a.Devices, device.PathInContainer)
		}
		for _, annotation := range options.Annotations {
			a.Annotations[annotation.Name] = annotation.Value
		}
	}
	for _, held := range k.GetDevices(c.UID, c.Container) {
		a.Held[held.ResourceName] = append(a.Held[held.ResourceName], held.DeviceIds...)
	}
	return a
}

func (k *kubelet) capacity() answer {
	capacity, allocatable, gone := k.manager.GetCapacity()
	a := answer{Capacity: map[string]int64{}, Allocatable: map[string]int64{}}
	for name, quantity := range capacity {
		a.Capacity[string(name)] = quantity.Value()
	}
	for name, quantity := range allocatable {
		a.Allocatable[string(name)] = quantity.Value()
	}
	for _, name := range gone {
		a.Capacity[name] = 0
	}
	return a
}

func (k *kubelet) remove(uid string) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	kept := k.pods[:0:0]
	for _, pod := range k.pods {
		if string(pod.UID) != uid {
			kept = append(kept, pod)
		}
	}
	k.pods = kept
}

func (k *kubelet) find(uid, name string) (*v1.Pod, *v1.Container) {
	for _, pod := range k.GetActivePods() {
		if string(pod.UID) != uid {
			continue
		}
		all := append(append([]v1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...)
		for i := range all {
			if all[i].Name == name {
				return pod, &all[i]
			}
		}
	}
	return nil, nil
}

// What the PodResources server asks for.

// GetActivePods returns the admitted pods.
func (k *kubelet) GetActivePods() []*v1.Pod {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	return append([]*v1.Pod{}, k.pods...)
}

// GetPods is the same here: a pod that ended is removed by the test.
func (k *kubelet) GetPods() []*v1.Pod { return k.GetActivePods() }

// GetPodByName finds an admitted pod.
func (k *kubelet) GetPodByName(namespace, name string) (*v1.Pod, bool) {
	for _, pod := range k.GetActivePods() {
		if pod.Namespace == namespace && pod.Name == name {
			return pod, true
		}
	}
	return nil, false
}

// UpdateAllocatedDevices frees what pods held that are gone.
func (k *kubelet) UpdateAllocatedDevices() { k.manager.UpdateAllocatedDevices() }

// GetDevices answers as the container manager does.
func (k *kubelet) GetDevices(uid, name string) []*podresourcesapi.ContainerDevices {
	return containerDevices(k.manager.GetDevices(uid, name))
}

// GetAllocatableDevices answers as the container manager does.
func (k *kubelet) GetAllocatableDevices() []*podresourcesapi.ContainerDevices {
	return containerDevices(k.manager.GetAllocatableDevices())
}

func containerDevices(instances devicemanager.ResourceDeviceInstances) []*podresourcesapi.ContainerDevices {
	var found []*podresourcesapi.ContainerDevices
	for name, devices := range instances {
		for id, device := range devices {
			one := &podresourcesapi.ContainerDevices{ResourceName: name, DeviceIds: []string{id}}
			if device.Topology != nil {
				for _, node := range device.Topology.GetNodes() {
					if one.Topology == nil {
						one.Topology = &podresourcesapi.TopologyInfo{}
					}
					one.Topology.Nodes = append(one.Topology.Nodes, &podresourcesapi.NUMANode{ID: node.GetID()})
				}
			}
			found = append(found, one)
		}
	}
	return found
}

// none provides the parts of PodResources that have nothing to do with devices.
type none struct{}

func (none) GetCPUs(string, string) []int64                              { return nil }
func (none) GetAllocatableCPUs() []int64                                 { return nil }
func (none) GetMemory(string, string) []*podresourcesapi.ContainerMemory { return nil }
func (none) GetAllocatableMemory() []*podresourcesapi.ContainerMemory    { return nil }
func (none) GetDynamicResources(*v1.Pod, *v1.Container) []*podresourcesapi.DynamicResource {
	return nil
}

func container(ask containerAsk) v1.Container {
	one := v1.Container{Name: ask.Name}
	one.Resources.Limits = v1.ResourceList{}
	for name, value := range ask.Limits {
		one.Resources.Limits[v1.ResourceName(name)] = *resource.NewQuantity(value, resource.DecimalSI)
	}
	if ask.Sidecar {
		always := v1.ContainerRestartPolicyAlways
		one.RestartPolicy = &always
	}
	return one
}

func refusal(err error) answer {
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{}
}

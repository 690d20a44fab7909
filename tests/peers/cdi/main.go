// Command cdipeer is the library by which containerd and CRI-O read CDI files, without the rest of a runtime: one JSON
// command per line on standard input, one JSON answer per line on standard output.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

type command struct {
	Do    string   `json:"do"`
	Dirs  []string `json:"dirs"`
	Names []string `json:"names"`
	Env   []string `json:"env"`
	Path  string   `json:"path"`
	// DeadlineS bounds await, in seconds.
	DeadlineS float64 `json:"deadline_s"`
	// Annotations are a container's, for named.
	Annotations map[string]string `json:"annotations"`
}

type answer struct {
	Error   string            `json:"error,omitempty"`
	Spec    *oci.Spec         `json:"spec,omitempty"`
	Devices []string          `json:"devices,omitempty"`
	Errors  map[string]string `json:"errors,omitempty"`
	// Seconds until a device could be injected, for await.
	Seconds float64 `json:"seconds,omitempty"`
}

func main() {
	var cache *cdi.Cache
	out := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c command
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			a = refusal(err)
		} else if c.Do == "open" {
			made, err := cdi.NewCache(cdi.WithSpecDirs(c.Dirs...), cdi.WithAutoRefresh(true))
			cache, a = made, refusal(err)
		} else if c.Do != "validate" && c.Do != "named" && cache == nil {
			a = answer{Error: "no directories are open"}
		} else {
			a = handle(cache, c)
		}
		if err := out.Encode(a); err != nil {
			os.Exit(1)
		}
	}
}

func handle(cache *cdi.Cache, c command) answer {
	switch c.Do {
	case "devices":
		a := answer{Devices: cache.ListDevices(), Errors: map[string]string{}}
		for path, errs := range cache.GetErrors() {
			a.Errors[path] = fmt.Sprint(errs)
		}
		return a
	case "inject":
		return inject(cache, c)
	case "await":
		return await(cache, c)
	case "validate":
		return validate(c.Path)
	case "named":
		_, names, err := cdi.ParseAnnotations(c.Annotations)
		if err != nil {
			return refusal(err)
		}
		return answer{Devices: names}
	}
	return answer{Error: fmt.Sprintf("no command %q", c.Do)}
}

func inject(cache *cdi.Cache, c command) answer {
	spec := &oci.Spec{Version: oci.Version, Process: &oci.Process{Env: c.Env}, Linux: &oci.Linux{}}
	if _, err := cache.InjectDevices(spec, c.Names...); err != nil {
		return refusal(err)
	}
	return answer{Spec: spec}
}

// await asks again and again, as nothing says when the cache has it.
func await(cache *cdi.Cache, c command) answer {
	began := time.Now()
	for {
		a := inject(cache, c)
		a.Seconds = time.Since(began).Seconds()
		if a.Error == "" || a.Seconds > c.DeadlineS {
			return a
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// validate is what a runtime checks of one file.
func validate(path string) answer {
	_, err := cdi.ReadSpec(path, 0)
	return refusal(err)
}

func refusal(err error) answer {
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{}
}

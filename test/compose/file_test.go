// Package compose runs docker-compose.yml without a container engine: the programs, command lines, environment and TLS that
// it says, as plain processes. Hosts become 127.0.0.1 with free ports, paths become directories of the test.
package compose

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	yaml "go.yaml.in/yaml/v3"

	"github.com/toolherd/toolherd/test/partners"
)

// file is docker-compose.yml, as far as it is used there: another key fails the test.
type file struct {
	Name         string             `yaml:"name"`
	XDSN         string             `yaml:"x-dsn"`
	XEnvironment map[string]string  `yaml:"x-environment"`
	Services     map[string]service `yaml:"services"`
	Volumes      map[string]any     `yaml:"volumes"`
}

type service struct {
	Build struct {
		Context string            `yaml:"context"`
		Args    map[string]string `yaml:"args"`
	} `yaml:"build"`
	Image       string                `yaml:"image"`
	Command     []string              `yaml:"command"`
	Environment map[string]string     `yaml:"environment"`
	Ports       []string              `yaml:"ports"`
	Volumes     []string              `yaml:"volumes"`
	DependsOn   map[string]dependency `yaml:"depends_on"`
	Deploy      struct {
		Replicas int `yaml:"replicas"`
	} `yaml:"deploy"`
	Profiles        []string `yaml:"profiles"`
	Healthcheck     any      `yaml:"healthcheck"`
	Restart         string   `yaml:"restart"`
	StopGracePeriod string   `yaml:"stop_grace_period"`
}

type dependency struct {
	Condition string `yaml:"condition"`
}

// The conditions of a dependency.
const (
	completed = "service_completed_successfully"
	healthy   = "service_healthy"
)

var variable = regexp.MustCompile(`\$\{([A-Z_]+)(:-([^}]*))?\}`)

// parse reads docker-compose.yml with the default of each variable.
func parse(t *testing.T) file {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(partners.Root(t), "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	content = variable.ReplaceAllFunc(content, func(ref []byte) []byte {
		m := variable.FindSubmatch(ref)
		if m[2] == nil {
			t.Errorf("%s has no default: 'docker compose up' alone must work", ref)
		}
		return m[3]
	})
	var f file
	dec := yaml.NewDecoder(bytes.NewReader(content))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil {
		t.Fatal(err)
	}
	return f
}

// programs reads from the Dockerfile which main package each SERVICE is built of.
func programs(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(partners.Root(t), "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ +([a-z|]+)\) dir="?([^"\s]+)"? ;;`).FindAllStringSubmatch(string(content), -1) {
		for name := range strings.SplitSeq(m[1], "|") {
			out[name] = strings.ReplaceAll(m[2], "$SERVICE", name)
		}
	}
	return out
}

// oneShot reports whether others wait for the end of a service.
func (f file) oneShot(name string) bool {
	for _, s := range f.Services {
		if s.DependsOn[name].Condition == completed {
			return true
		}
	}
	return false
}

func TestTheFileHoldsTogether(t *testing.T) {
	f := parse(t)
	packages := programs(t)
	if len(packages) != 5 {
		t.Fatalf("the Dockerfile builds %v", packages)
	}
	for name, s := range f.Services {
		if program := s.Build.Args["SERVICE"]; s.Build.Context != "" {
			if packages[program] == "" || s.Build.Context != "." || s.Image != "toolherd/"+program {
				t.Errorf("%s: build %v, image %s", name, s.Build, s.Image)
			}
		} else if !regexp.MustCompile(`:[0-9][0-9.]*$`).MatchString(s.Image) {
			t.Errorf("%s: image %q without a version", name, s.Image)
		}
		for on, d := range s.DependsOn {
			if _, ok := f.Services[on]; !ok || d.Condition != completed && d.Condition != healthy {
				t.Errorf("%s depends on %s, %s", name, on, d.Condition)
			}
		}
		if f.oneShot(name) != (s.Restart == "") {
			t.Errorf("%s: restart %q", name, s.Restart)
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if _, named := f.Volumes[source]; named {
				continue
			}
			if _, err := os.Stat(filepath.Join(partners.Root(t), source)); err != nil {
				t.Errorf("%s mounts %s: %v", name, source, err)
			}
		}
	}
	for name, replicas := range map[string]int{"taskworker": 2, "notifier": 2} {
		if got := f.Services[name].Deploy.Replicas; got != replicas {
			t.Errorf("%d of %s, want %d", got, name, replicas)
		}
	}
	if got := f.Services["collector"].Profiles; !slices.Equal(got, []string{"otel"}) {
		t.Errorf("the collector has profiles %q", got)
	}
	if got := f.Services["toolproxy"].Ports; !slices.Equal(got, []string{"127.0.0.1:7402:7402"}) {
		t.Errorf("toolproxy publishes %q", got)
	}
}

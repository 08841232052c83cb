package registry_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/services/registry"
)

func TestARegistryNeedsNoKeyFileButOneThatIsNamedMustBeUsable(t *testing.T) {
	cfg := config.Defaults()
	if key, err := registry.LoadKey(cfg); key != nil || err != nil {
		t.Errorf("without a key file: got %v, %v", key, err)
	}
	cfg.Registry.SecretKeyFile = filepath.Join(t.TempDir(), "none")
	if _, err := registry.LoadKey(cfg); err == nil || !strings.Contains(err.Error(), "registry.secret_key_file") || !strings.Contains(err.Error(), cfg.Registry.SecretKeyFile) {
		t.Errorf("a key file that is missing: got %v", err)
	}
}

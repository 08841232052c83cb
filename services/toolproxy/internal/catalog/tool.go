package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// maxDefinitionBytes bounds one tool, so that a page of a list always fits into a message.
const maxDefinitionBytes = 1 << 20

// maxNameChars keeps a name that was refused from flooding a warning.
const maxNameChars = 80

// Definition is a tool as its server describes it. Schemas, annotations and meta are JSON, token for token.
type Definition struct {
	Name         string
	Title        string
	Description  string
	InputSchema  string
	OutputSchema string // empty if there is none
	Annotations  string // empty if there are none
	Meta         string // empty if there is none
}

// Define reads an element of a tool list, which is valid JSON. A tool without an input schema takes any object.
func Define(raw json.RawMessage) (Definition, error) {
	if len(raw) > maxDefinitionBytes {
		return Definition{}, fmt.Errorf("it is larger than %d bytes", maxDefinitionBytes)
	}
	d := Definition{InputSchema: `{"type":"object"}`}
	named := false
	for key, value := range jsonrpc.Members(raw) {
		var err error
		switch string(key) {
		case "name":
			named = true
			err = setString(&d.Name, value)
		case "title":
			err = setString(&d.Title, value)
		case "description":
			err = setString(&d.Description, value)
		case "inputSchema":
			err = setObject(&d.InputSchema, value)
		case "outputSchema":
			err = setObject(&d.OutputSchema, value)
		case "annotations":
			err = setObject(&d.Annotations, value)
		case "_meta":
			err = setObject(&d.Meta, value)
		}
		if err != nil {
			return Definition{}, fmt.Errorf("its %s %w", key, err)
		}
	}
	if !named {
		return Definition{}, errors.New("it has no name")
	}
	return d, nil
}

func setString(dst *string, raw json.RawMessage) error {
	if jsonrpc.IsNull(raw) {
		return nil
	}
	s, ok := jsonrpc.String(raw)
	if !ok {
		return errors.New("is not a string")
	}
	*dst = strings.ToValidUTF8(s, "\uFFFD")
	return nil
}

func setObject(dst *string, raw json.RawMessage) error {
	switch {
	case jsonrpc.IsNull(raw):
		return nil
	case !jsonrpc.IsObject(raw):
		return errors.New("is not an object")
	}
	*dst = strings.ToValidUTF8(string(raw), "\uFFFD")
	return nil
}

// Rules are what the entry of a server says about its tools.
type Rules struct {
	Server    string
	Prefix    bool // visible names begin with the server's
	Filter    Filter
	MaxLength int // of a visible name in bytes, at least 16
	// Toolsets name the tools of durable tasks by their own names. They count whatever Filter says.
	Toolsets []serverconfig.TaskToolset
	// Routing returns the hints for the tool with this original name, or nil where routing is off.
	Routing func(original string) *toolproxyv1.Routing
}

// Contribution is what one server adds to the catalog, before names are compared with those of other servers.
// It is immutable.
type Contribution struct {
	Warnings  []string
	tools     []candidate // by original name in code points
	maxLength int
}

type candidate struct {
	visible string
	def     *Definition
	routing *toolproxyv1.Routing
	toolset *serverconfig.TaskToolset // set for its submit tool
}

// Contribute applies the rules of a server to its tools.
func Contribute(r Rules, defs []Definition) Contribution {
	var (
		c     = Contribution{maxLength: r.MaxLength}
		f     = newFilter(r.Filter)
		names []string
		seen  = map[string]bool{}
	)
	for i := range defs {
		d := &defs[i]
		if err := checkOriginal(d.Name); err != nil {
			c.warn("server %q: tool %q is left out: its name is not usable, %v", r.Server, Shorten(d.Name, maxNameChars), err)
			continue
		}
		if seen[d.Name] {
			c.warn("server %q lists tool %q twice; the first one counts", r.Server, d.Name)
			continue
		}
		seen[d.Name] = true
		names = append(names, d.Name)
		visible := visibleName(r.Server, d.Name, r.Prefix, r.MaxLength)
		keep := f.keeps(r.Server+"_"+d.Name, d.Name, visible)
		set, follows := r.role(d.Name)
		if !keep || follows {
			continue
		}
		t := candidate{visible: visible, def: d, toolset: set}
		if r.Routing != nil {
			t.routing = r.Routing(d.Name)
		}
		c.tools = append(c.tools, t)
	}
	c.Warnings = append(c.Warnings, f.warnings(r.Server, names)...)
	slices.SortFunc(c.tools, func(a, b candidate) int { return strings.Compare(a.def.Name, b.def.Name) })
	return c
}

func (c *Contribution) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

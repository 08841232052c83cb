// Package catalog is what agents see of all servers: the tools by name, and how each server fares.
//
// A [Catalog] is an immutable value made by [Build] from what is known about each server; a [Store] holds the current
// one and tells watchers that there is another. Reading it is one atomic load.
//
// Names are a pure function of the servers' lists and rules. A visible name is `<server>_<tool>`, or the tool's own name
// where the entry says so, in [A-Za-z0-9_-] and within the length limit. Where two tools would get one name, the first by
// (server, own name) keeps it and the other gets a suffix made of its server and own name, so that restarts and the order
// of discovery change nothing. Calls are routed by the stored (server, own name); a name is never taken apart for that.
//
// Of the tools of a toolset agents see the one that submits: those that follow a task are hidden, and cannot be called.
package catalog

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/toolherd/toolherd/pkg/serverconfig"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/upstream"
)

// Source is what is known about one server at one time.
type Source struct {
	Name       string
	Transport  string
	File       string // that defines it
	Prefix     bool   // its tools' visible names begin with its name
	Status     corev1.ServerStatus
	Reason     string // empty only for OK
	Tail       string // the server's last output, for those who may see it; empty if there is none
	FixCommand string
	Since      time.Time
	NextRetry  time.Time // zero if none is planned
	Stale      bool
	Warnings   []string
	Upstream   *upstream.Server // how to call it; nil where it cannot be called
	Class      string           // of the file that defines it
	Public     json.RawMessage  // its entry as the snapshot has it, without secrets: what tasks are bound to
	Tools      Contribution
	Listed     bool // Tools are served; otherwise their names only explain what happened to them
}

// Server is a server of a catalog.
type Server struct {
	Source
	View *toolproxyv1.Server // as ListServers shows it; never changed
}

// Callable reports whether calls of the server's tools may be tried.
func (s *Server) Callable() bool { return s.Upstream != nil && s.Listed }

// Tool is a tool of a catalog.
type Tool struct {
	Name     string // the visible name
	Original string // the name on its server
	Server   *Server
	View     *toolproxyv1.Tool // as ListTools shows it; never changed
	Size     int               // of View in a message, in bytes

	// Toolset is set for a tool that submits a durable task: how that is followed.
	Toolset *serverconfig.TaskToolset
}

// Catalog is everything that is served at one time. It is immutable.
type Catalog struct {
	SnapshotID string
	Revision   int64

	servers  []*Server // by name
	byName   map[string]*Server
	tools    []*Tool // by visible name
	byTool   map[string]*Tool
	unlisted map[string]*Server // names of tools that their servers would serve if they fared well
}

// Servers returns every server by name in code points. The caller must not change the slice.
func (c *Catalog) Servers() []*Server { return c.servers }

// Server returns the server of this name, or nil.
func (c *Catalog) Server(name string) *Server { return c.byName[name] }

// Tools returns every tool by visible name in code points. The caller must not change the slice.
func (c *Catalog) Tools() []*Tool { return c.tools }

// Tool returns the tool with this visible name, or nil.
func (c *Catalog) Tool(name string) *Tool { return c.byTool[name] }

// After returns the tools whose names come after name.
func (c *Catalog) After(name string) []*Tool {
	i, found := slices.BinarySearchFunc(c.tools, name, func(t *Tool, name string) int { return strings.Compare(t.Name, name) })
	if found {
		i++
	}
	return c.tools[i:]
}

// Owner returns the server that a name without a tool most likely belongs to, to explain why there is none, or nil.
// It decides nothing about where a call goes.
func (c *Catalog) Owner(name string) *Server {
	if s := c.unlisted[name]; s != nil {
		return s
	}
	var best *Server
	for _, s := range c.servers {
		if s.Prefix && s.mayOwn(name) && (best == nil || len(s.Name) > len(best.Name)) {
			best = s
		}
	}
	return best
}

// Nearest returns the visible name that a name without a tool most likely means, or "" if none is close.
func (c *Catalog) Nearest(name string) string {
	names := make([]string, len(c.tools))
	for i, t := range c.tools {
		names[i] = t.Name
	}
	return nearest(name, names)
}

// Pending reports whether a server that has no verdict yet may turn out to own name.
func (c *Catalog) Pending(name string) bool {
	return slices.ContainsFunc(c.servers, func(s *Server) bool {
		return s.Status == corev1.ServerStatus_SERVER_STATUS_STARTING && s.mayOwn(name)
	})
}

// mayOwn reports whether one of the server's tools could have this visible name.
func (s *Server) mayOwn(name string) bool {
	if !s.Prefix {
		return true
	}
	prefix := legal(s.Name) + "_"
	if strings.HasPrefix(name, prefix) {
		return true
	}
	// A long name was cut, perhaps within the server's part, and a hash stands behind the cut.
	head := len(name) - hashDigits - 1
	return head > 0 && head < len(prefix) && strings.HasPrefix(prefix, name[:head]) && name[head] == '_'
}

// Build makes a catalog of sources, in any order.
func Build(snapshotID string, revision int64, sources []Source) *Catalog {
	c := &Catalog{
		SnapshotID: snapshotID,
		Revision:   revision,
		byName:     make(map[string]*Server, len(sources)),
		byTool:     map[string]*Tool{},
		unlisted:   map[string]*Server{},
	}
	for _, src := range sources {
		src.Reason = Shorten(src.Reason, maxReasonChars)
		s := &Server{Source: src}
		c.servers = append(c.servers, s)
		c.byName[s.Name] = s
	}
	slices.SortFunc(c.servers, func(a, b *Server) int { return strings.Compare(a.Name, b.Name) })
	collisions := c.addTools()
	for _, s := range c.servers {
		s.View = s.view(collisions[s])
	}
	return c
}

// addTools settles the names and returns what there is to report about them.
func (c *Catalog) addTools() map[*Server][]string {
	reports := map[*Server][]string{}
	for _, s := range c.servers { // by server, then by own name: who comes first keeps the name
		for _, t := range s.Tools.tools {
			if !s.Listed {
				if c.unlisted[t.visible] == nil {
					c.unlisted[t.visible] = s
				}
				continue
			}
			name := t.visible
			if first := c.byTool[name]; first != nil {
				name = c.freeName(s, t)
				report := "tool " + t.def.Name + " of server " + s.Name + " is served as " + name + ": the name " + t.visible +
					" belongs to tool " + first.Original + " of server " + first.Server.Name
				reports[s] = append(reports[s], report)
				if first.Server != s {
					reports[first.Server] = append(reports[first.Server], report)
				}
			}
			c.byTool[name] = newTool(name, s, t)
		}
	}
	c.tools = make([]*Tool, 0, len(c.byTool))
	for _, t := range c.byTool {
		c.tools = append(c.tools, t)
	}
	slices.SortFunc(c.tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
	return reports
}

// freeName returns a name for the later of two tools that collide.
func (c *Catalog) freeName(s *Server, t candidate) string {
	suffix := hash(s.Name, t.def.Name)
	for {
		name := withSuffix(t.visible, suffix, s.Tools.maxLength)
		if c.byTool[name] == nil {
			return name
		}
		suffix = hash(suffix)
	}
}

func newTool(name string, s *Server, t candidate) *Tool {
	view := &toolproxyv1.Tool{
		Name: name, OriginalName: t.def.Name, Server: s.Name, Title: t.def.Title, Description: t.describe(),
		InputSchemaJson: t.def.InputSchema, OutputSchemaJson: t.def.OutputSchema,
		AnnotationsJson: t.def.Annotations, MetaJson: t.def.Meta, Routing: t.routing,
	}
	return &Tool{Name: name, Original: t.def.Name, Server: s, View: view, Size: proto.Size(view), Toolset: t.toolset}
}

func (s *Server) view(collisions []string) *toolproxyv1.Server {
	v := &toolproxyv1.Server{
		Name: s.Name, Status: s.Status, Transport: s.Transport, Reason: s.Reason, FixCommand: s.FixCommand,
		Stale: s.Stale, Source: s.File, SinceTime: timestamppb.New(s.Since),
		Warnings: bounded(slices.Concat(s.Warnings, s.Tools.Warnings, collisions)),
	}
	if s.Listed {
		v.ToolCount = int32(len(s.Tools.tools))
	}
	if !s.NextRetry.IsZero() {
		v.NextRetryTime = timestamppb.New(s.NextRetry)
	}
	return v
}

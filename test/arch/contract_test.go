package arch

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/toolherd/toolherd/proto/gen/toolherd/agent/v1"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/interceptor/v1"
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/notifier/v1"
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/task/v1"
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

// compile reads every proto of the tree with its comments.
func compile(t *testing.T) []protoreflect.FileDescriptor {
	t.Helper()
	c := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{filepath.Join(root(t), "proto")}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	var names []string
	for _, f := range listFiles(t, "proto/*.proto") {
		names = append(names, strings.TrimPrefix(f, "proto/"))
	}
	files, err := c.Compile(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]protoreflect.FileDescriptor, len(files))
	for i, f := range files {
		out[i] = f
	}
	return out
}

func TestGeneratedCodeIsFresh(t *testing.T) {
	for _, want := range compile(t) {
		got, err := protoregistry.GlobalFiles.FindFileByPath(want.Path())
		if err != nil {
			t.Errorf("%s has no generated code: run 'make gen'", want.Path())
			continue
		}
		if !proto.Equal(plain(t, want), plain(t, got)) {
			t.Errorf("generated code of %s is not what the proto says: run 'make gen'", want.Path())
		}
	}
}

// plain is the descriptor without comments, its options re-read through the linked extensions.
func plain(t *testing.T, fd protoreflect.FileDescriptor) proto.Message {
	t.Helper()
	p := protodesc.ToFileDescriptorProto(fd)
	p.SourceCodeInfo = nil
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	again := p.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(b, again); err != nil {
		t.Fatal(err)
	}
	return again
}

// OPS-004: every RPC, message, field and value is commented.
func TestEverythingInTheContractIsCommented(t *testing.T) {
	for _, fd := range compile(t) {
		check := func(d protoreflect.Descriptor) {
			if strings.TrimSpace(fd.SourceLocations().ByDescriptor(d).LeadingComments) == "" {
				t.Errorf("%s: %s has no comment", fd.Path(), d.FullName())
			}
		}
		for s := range all(fd.Services()) {
			check(s)
			for m := range all(s.Methods()) {
				check(m)
			}
		}
		for e := range all(fd.Enums()) {
			check(e)
			for v := range all(e.Values()) {
				check(v)
			}
		}
		for m := range all(fd.Messages()) {
			check(m)
			for f := range all(m.Fields()) {
				check(f)
			}
		}
	}
}

func TestEveryRPCDeclaresItsRoles(t *testing.T) {
	count := 0
	for _, fd := range compile(t) {
		linked, err := protoregistry.GlobalFiles.FindFileByPath(fd.Path())
		if err != nil {
			t.Fatal(err)
		}
		for s := range all(linked.Services()) {
			for m := range all(s.Methods()) {
				count++
				roles, _ := proto.GetExtension(m.Options(), corev1.E_Roles).([]corev1.Role)
				if len(roles) == 0 {
					t.Errorf("%s declares no roles: nobody could call it", m.FullName())
				}
				for _, r := range roles {
					if r == corev1.Role_ROLE_UNSPECIFIED {
						t.Errorf("%s admits ROLE_UNSPECIFIED", m.FullName())
					}
				}
			}
		}
	}
	if count < 50 {
		t.Fatalf("only %d RPCs found", count)
	}
}

// Fields whose values are secrets must not appear when a message is printed.
func TestSecretFieldsAreRedactedWhenPrinted(t *testing.T) {
	secret := map[protoreflect.Name]bool{
		"secrets": true, "request_state": true, "input_responses_json": true, "header_value": true, "code": true, "headers": true,
	}
	found := 0
	for _, fd := range compile(t) {
		for m := range all(fd.Messages()) {
			for f := range all(m.Fields()) {
				if !secret[f.Name()] {
					continue
				}
				found++
				opts := protodesc.ToFieldDescriptorProto(f).GetOptions()
				if !opts.GetDebugRedact() {
					t.Errorf("%s holds secrets and is not debug_redact", f.FullName())
				}
			}
		}
	}
	if found < 8 {
		t.Fatalf("only %d secret fields found", found)
	}
}

// indexed is what every descriptor list offers.
type indexed[D protoreflect.Descriptor] interface {
	Len() int
	Get(i int) D
}

func all[D protoreflect.Descriptor](list indexed[D]) func(yield func(D) bool) {
	return func(yield func(D) bool) {
		for i := range list.Len() {
			if !yield(list.Get(i)) {
				return
			}
		}
	}
}

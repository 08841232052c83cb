package rpc

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/toolherd/toolherd/pkg/authn"
	corev1 "github.com/toolherd/toolherd/proto/gen/toolherd/core/v1"
)

// rights say who may call a method and what may be done with a call of it.
type rights struct {
	known      bool         // a descriptor of the method is linked into this process
	forwarded  bool         // a toolproxy may make a call of it for a principal that it names
	open       bool         // any recognised caller may call it
	roles      []authn.Role // one of these is needed; none means that nobody may
	idempotent bool         // a repeated call does no harm
}

// internal reports whether only service roles may call the method.
func (r rights) internal() bool {
	return len(r.roles) > 0 && !slices.ContainsFunc(r.roles, func(role authn.Role) bool { return !role.Service() })
}

// admits reports whether p may call the method.
func (r rights) admits(p *authn.Principal) bool {
	if r.open {
		return true
	}
	return slices.ContainsFunc(r.roles, p.Has)
}

// rightsOf reads the rights of a method from its descriptor. The method's name has the form "package.Service/Method".
func rightsOf(method string) rights {
	service, name, ok := strings.Cut(method, "/")
	if !ok {
		return rights{}
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return rights{open: openService(service)}
	}
	sd, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return rights{}
	}
	md := sd.Methods().ByName(protoreflect.Name(name))
	if md == nil {
		return rights{}
	}
	r := rights{known: true, open: openService(service), forwarded: forwardedService(service)}
	options, ok := md.Options().(*descriptorpb.MethodOptions)
	if !ok {
		return r
	}
	r.idempotent = idempotent(options)
	declared, _ := proto.GetExtension(options, corev1.E_Roles).([]corev1.Role)
	for _, d := range declared {
		if role, ok := roleOf(d); ok && !slices.Contains(r.roles, role) {
			r.roles = append(r.roles, role)
		}
	}
	return r
}

func idempotent(o *descriptorpb.MethodOptions) bool {
	return o.GetIdempotencyLevel() != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
}

// openService reports whether a service is one of those that every server offers to every recognised caller.
func openService(name string) bool {
	return name == "grpc.health.v1.Health" ||
		name == "grpc.reflection.v1.ServerReflection" ||
		name == "grpc.reflection.v1alpha.ServerReflection"
}

// forwardedService reports whether toolproxies forward the calls of a service, so that one address is enough for an agent.
func forwardedService(name string) bool {
	return name == "toolherd.task.v1.TaskService" || name == "toolherd.notifier.v1.NotifierService"
}

func roleOf(r corev1.Role) (authn.Role, bool) {
	switch r {
	case corev1.Role_ROLE_AGENT:
		return authn.Agent, true
	case corev1.Role_ROLE_OPERATOR:
		return authn.Operator, true
	case corev1.Role_ROLE_WORKER:
		return authn.Worker, true
	case corev1.Role_ROLE_TOOLPROXY:
		return authn.Toolproxy, true
	case corev1.Role_ROLE_NOTIFIER:
		return authn.Notifier, true
	case corev1.Role_ROLE_UNSPECIFIED:
	}
	return "", false
}

func roleNames(roles []authn.Role, separator string) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return strings.Join(names, separator)
}

// services calls f for every service of Toolherd whose descriptor is linked into this process.
func services(f func(protoreflect.ServiceDescriptor)) {
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(file.Package()), "toolherd.") {
			for i := range file.Services().Len() {
				f(file.Services().Get(i))
			}
		}
		return true
	})
}

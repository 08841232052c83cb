package rpc

import (
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/reflect/protoreflect"

	// Contracts that others implement: linked, so that every server can describe them.
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/agent/v1"
	_ "github.com/toolherd/toolherd/proto/gen/toolherd/interceptor/v1"
)

// registerOpenServices registers what every server offers.
func (s *Server) registerOpenServices() {
	healthv1.RegisterHealthServer(s, s.health.grpc)
	options := reflection.ServerOptions{Services: described{s}}
	reflectionv1.RegisterServerReflectionServer(s, reflection.NewServerV1(options))
	reflectionv1alpha.RegisterServerReflectionServer(s, reflection.NewServer(options))
}

// described names the services that reflection lists: those of the server, and every other service of Toolherd whose
// descriptor is linked, so that one address tells a person about all of them, those that agents implement included.
type described struct{ s *Server }

// GetServiceInfo implements [reflection.ServiceInfoProvider], which looks at the names only.
func (d described) GetServiceInfo() map[string]grpc.ServiceInfo {
	info := map[string]grpc.ServiceInfo{}
	for name := range d.s.descs {
		info[name] = grpc.ServiceInfo{}
	}
	services(func(sd protoreflect.ServiceDescriptor) { info[string(sd.FullName())] = grpc.ServiceInfo{} })
	return info
}

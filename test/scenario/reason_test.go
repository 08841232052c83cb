package scenario

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// failure is an error of a call as a client without our code sees it.
type failure struct {
	Code     codes.Code
	Message  string
	Domain   string
	Reason   string
	Metadata map[string]string
}

func reasonOf(err error) failure {
	st := status.Convert(err)
	f := failure{Code: st.Code(), Message: st.Message()}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			f.Domain, f.Reason, f.Metadata = info.GetDomain(), info.GetReason(), info.GetMetadata()
		}
	}
	return f
}

// unavailable reports whether an error says that nothing happened and another try may help, as when a program is starting.
func unavailable(err error) bool { return status.Code(err) == codes.Unavailable }

package fault

// Kind is the class of a failure. Each maps to one gRPC status code, in pkg/rpc and nowhere else.
type Kind uint8

// The kinds. Internal is the zero value: what nobody classified is our own mistake.
const (
	Internal Kind = iota
	NotFound
	FailedPrecondition
	PermissionDenied
	Unauthenticated
	InvalidArgument
	Aborted
	ResourceExhausted
	DeadlineExceeded
	Unavailable // only where the call provably did not run, because clients retry it
	Unknown
	Unimplemented
	Canceled
)

// Reason names a failure for programs. It travels as google.rpc.ErrorInfo.reason under the domain "toolherd",
// and equals a value of toolherd.core.v1.Reason without its prefix.
type Reason string

// The reasons, by kind.
const (
	ThreadGone           Reason = "THREAD_GONE"
	ToolNotFound         Reason = "TOOL_NOT_FOUND"
	ServerNotFound       Reason = "SERVER_NOT_FOUND"
	TaskNotFound         Reason = "TASK_NOT_FOUND"
	SnapshotNotFound     Reason = "SNAPSHOT_NOT_FOUND"
	NotificationNotFound Reason = "NOTIFICATION_NOT_FOUND"
	SinkUnknown          Reason = "SINK_UNKNOWN"

	ServerDisabled          Reason = "SERVER_DISABLED"
	ServerUntrusted         Reason = "SERVER_UNTRUSTED"
	ServerError             Reason = "SERVER_ERROR"
	UpstreamUnauthenticated Reason = "UPSTREAM_UNAUTHENTICATED"
	TaskTerminal            Reason = "TASK_TERMINAL"
	TasksUnavailable        Reason = "TASKS_UNAVAILABLE"
	AnswerUnsupported       Reason = "ANSWER_UNSUPPORTED"
	CredentialIllegal       Reason = "CREDENTIAL_ILLEGAL"
	LaunchPolicy            Reason = "LAUNCH_POLICY"

	CredentialMissing Reason = "CREDENTIAL_MISSING"
	Forbidden         Reason = "FORBIDDEN"

	InvalidArguments Reason = "INVALID_ARGUMENTS"
	ConfigInvalid    Reason = "CONFIG_INVALID"
	MaskedValue      Reason = "MASKED_VALUE"
	PayloadTooLarge  Reason = "PAYLOAD_TOO_LARGE"

	ThreadBusy          Reason = "THREAD_BUSY"
	SessionClosed       Reason = "SESSION_CLOSED"
	ConfigConflict      Reason = "CONFIG_CONFLICT"
	RequestInProgress   Reason = "REQUEST_IN_PROGRESS"
	RequestIDConflict   Reason = "REQUEST_ID_CONFLICT"
	ReservationExpired  Reason = "RESERVATION_EXPIRED"
	DuplicateRemoteTask Reason = "DUPLICATE_REMOTE_TASK"

	SessionLimit Reason = "SESSION_LIMIT"
	RateLimited  Reason = "RATE_LIMITED"

	Timeout Reason = "TIMEOUT"

	NoWorker    Reason = "NO_WORKER"
	CircuitOpen Reason = "CIRCUIT_OPEN"
	NotReady    Reason = "NOT_READY"

	UpstreamError    Reason = "UPSTREAM_ERROR"
	UpstreamProtocol Reason = "UPSTREAM_PROTOCOL"
)

// Kind returns the kind that the reason belongs to; an unknown reason, perhaps from a newer peer, is Unknown.
func (r Reason) Kind() Kind {
	switch r {
	case ThreadGone, ToolNotFound, ServerNotFound, TaskNotFound, SnapshotNotFound, NotificationNotFound, SinkUnknown:
		return NotFound
	case ServerDisabled, ServerUntrusted, ServerError, UpstreamUnauthenticated, TaskTerminal, TasksUnavailable,
		AnswerUnsupported, CredentialIllegal, LaunchPolicy:
		return FailedPrecondition
	case CredentialMissing, Forbidden:
		return PermissionDenied
	case InvalidArguments, ConfigInvalid, MaskedValue, PayloadTooLarge:
		return InvalidArgument
	case ThreadBusy, SessionClosed, ConfigConflict, RequestInProgress, RequestIDConflict, ReservationExpired, DuplicateRemoteTask:
		return Aborted
	case SessionLimit, RateLimited:
		return ResourceExhausted
	case Timeout:
		return DeadlineExceeded
	case NoWorker, CircuitOpen, NotReady:
		return Unavailable
	default:
		return Unknown
	}
}

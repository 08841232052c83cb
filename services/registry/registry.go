package registry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"

	credentialv1 "github.com/toolherd/toolherd/proto/gen/toolherd/credential/v1"
	registryv1 "github.com/toolherd/toolherd/proto/gen/toolherd/registry/v1"

	"github.com/toolherd/toolherd/pkg/db"
	"github.com/toolherd/toolherd/pkg/run"
	"github.com/toolherd/toolherd/pkg/secret"
	"github.com/toolherd/toolherd/pkg/wake"
	"github.com/toolherd/toolherd/services/registry/internal/mark"
	marklite "github.com/toolherd/toolherd/services/registry/internal/mark/litestore"
	markpg "github.com/toolherd/toolherd/services/registry/internal/mark/pgstore"
	"github.com/toolherd/toolherd/services/registry/internal/policy"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot/litestore"
	"github.com/toolherd/toolherd/services/registry/internal/snapshot/pgstore"
	"github.com/toolherd/toolherd/services/registry/internal/source"
	"github.com/toolherd/toolherd/services/registry/internal/verdict"
	"github.com/toolherd/toolherd/services/registry/internal/write"
)

// Service is a registry. Its RPCs may be called before, while and after it runs; before the first publication they
// answer NOT_READY.
type Service struct {
	db       *db.DB
	store    snapshot.Store
	wake     wake.Bus
	log      *slog.Logger
	key      *secret.Key
	etagKey  *secret.Key
	layers   []source.Layer
	writable source.Layer // what the API shows as its own; the zero value if there is none
	judge    *verdict.Judge
	marks    mark.Store

	// What API writes need.
	policy  policy.Policy
	envRefs []string
	noTasks bool
	writer  *write.Writer // of the writable file; nil if there is none
	work    *work

	// maxTaskAge is how long a task may need the secrets that it was submitted with.
	maxTaskAge time.Duration

	feed *feed
	own  atomic.Pointer[view] // what this replica's files say
}

// New checks the configuration and returns a registry that is not running. It fails with CONFIG_INVALID where an
// explicit file or a directory does not exist; the error names it and the flag or variable. It opens no server file.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := deps.validate(); err != nil {
		return nil, err
	}
	layers, err := source.Layers(cfg.places())
	if err != nil {
		return nil, err
	}
	etagKey, err := newEtagKey(deps.Key)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	log := deps.Log.With("service", "registry")
	store := newStore(deps.DB)
	s := &Service{
		db:       deps.DB,
		store:    store,
		wake:     deps.Wake,
		log:      log,
		key:      deps.Key,
		etagKey:  etagKey,
		layers:   layers,
		writable: writable(layers),

		maxTaskAge: cmp.Or(cfg.MaxTaskAge, defaultMaxTaskAge),
		judge: verdict.New(verdict.Policy{
			TrustProject:     cfg.TrustProjectMCP,
			TrustCommand:     cfg.trustCommand(),
			SkipInterceptors: cfg.SkipInterceptors,
			NoTasks:          cfg.NoTasks,
			EnvRefs:          cfg.EnvRefs,
			Key:              deps.Key,
		}),
		marks:   newMarks(deps.DB),
		policy:  policy.New(cfg.StdioCommandAllowlist),
		envRefs: cfg.EnvRefs,
		noTasks: cfg.NoTasks,
		work:    newWork(),
		feed:    newFeed(store, log),
	}
	if s.writable.Path != "" {
		s.writer = write.New(s.writable.Path, readFile, log)
	}
	return s, nil
}

func newMarks(d *db.DB) mark.Store {
	if d.Engine() == db.Postgres {
		return markpg.New(d.Pool())
	}
	return marklite.New(d)
}

func newStore(d *db.DB) snapshot.Store {
	if d.Engine() == db.Postgres {
		return pgstore.New(d.Pool())
	}
	return litestore.New(d)
}

// writable returns the layer that the API shows as its own: the last explicit file, else the user's.
func writable(layers []source.Layer) source.Layer {
	if n := len(layers); n > 0 && layers[n-1].Class == snapshot.Explicit {
		return layers[n-1]
	}
	for _, l := range layers {
		if l.Name == source.UserFile {
			return l
		}
	}
	return source.Layer{}
}

// Register registers what agents and operators may call. ResolveSecrets and GetAccessToken are refused there whatever
// token the caller has: register it with listeners that others than Toolherd's own services can reach.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	registryv1.RegisterRegistryServiceServer(r, &registryServer{s: s})
	credentialv1.RegisterCredentialServiceServer(r, &credentialServer{s: s})
}

// RegisterInternal registers everything, ResolveSecrets and GetAccessToken included: for the in-process listener of
// the all-in-one, and for the listener of a registry of its own, where only a token with the role toolproxy opens them.
func (s *Service) RegisterInternal(r grpc.ServiceRegistrar) {
	registryv1.RegisterRegistryServiceServer(r, &registryServer{s: s})
	credentialv1.RegisterCredentialServiceServer(r, &credentialServer{s: s, internal: true})
}

// Run publishes what the files say and follows what is effective until ctx ends. It returns when all of it has stopped.
// It may be called once. It fails with TASKS_UNAVAILABLE where the operator's files ask for durable tasks at the start and
// there are none.
func (s *Service) Run(ctx context.Context) error {
	published := make(chan struct{})
	return run.All(ctx,
		run.Task{Name: "publish", Run: func(ctx context.Context) error { return s.publishLoop(ctx, published) }},
		run.Task{Name: "follow", Run: func(ctx context.Context) error { return s.followLoop(ctx, published) }},
		run.Task{Name: "sweep", Run: func(ctx context.Context) error { return s.sweepLoop(ctx, published) }},
	)
}

// Ready returns nil once the first snapshot is published and while the database answers.
func (s *Service) Ready(ctx context.Context) error {
	if _, err := s.feed.current(); err != nil {
		return err
	}
	return s.db.Ping(ctx)
}

// shellWord quotes word for a shell where it needs to be. The result is printable text whatever word is.
func shellWord(word string) string {
	plain, printable := word != "", true
	for _, r := range word {
		switch {
		case r == utf8.RuneError || !unicode.IsPrint(r):
			printable = false
		case r >= utf8.RuneSelf || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./+:@%,=", r):
			plain = false
		}
	}
	switch {
	case printable && plain:
		return word
	case printable:
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	b := []byte("$'")
	for _, c := range []byte(word) {
		if c >= ' ' && c < 0x7f && c != '\'' && c != '\\' {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, `\x%02x`, c)
		}
	}
	return string(append(b, '\''))
}

package partners

import (
	"path/filepath"
	"sync"
	"testing"
)

// goPrograms builds main packages of the repository, each once for each test binary.
var goPrograms sync.Map // directory to func() (string, error)

// GoProgram builds the main package in a directory of the repository, such as "test/bench/echoserver".
func GoProgram(t testing.TB, dir string) Command {
	t.Helper()
	once, _ := goPrograms.LoadOrStore(dir, sync.OnceValues(func() (string, error) { return goBuild(own(dir)) }))
	return Command{Path: built(t, once.(func() (string, error)))}
}

// StartListening runs a program until the test ends; URL is what it prints after "listening".
func StartListening(t testing.TB, c Command) *Process {
	t.Helper()
	p := start(t, c)
	p.URL = p.announced(t, `(?m)^listening (\S+)$`)
	return p
}

// StartUp runs `toolherd up` on free ports and its own state directory until the test ends, and waits for its ready
// line; URL is its gRPC address. Its home directory is the state directory, so that no file of the machine's user counts.
func StartUp(t testing.TB, stateDir string, args ...string) *Process {
	t.Helper()
	p := start(t, Up(t, stateDir, args...))
	p.URL = p.announced(t, `(?m)^ready grpc=(\S+) http=\S+$`)
	return p
}

// StartService runs a service of a split deployment on a free port until the test ends, and waits for its ready line; URL is
// its gRPC address.
func StartService(t testing.TB, name string, args ...string) *Process {
	t.Helper()
	c := GoProgram(t, filepath.Join("services", name, "cmd", name)).With("--listen", "127.0.0.1:0")
	p := start(t, c.With(args...))
	p.URL = p.announced(t, `(?m)^ready grpc=(\S+)`)
	return p
}

// Up is the command line of [StartUp].
func Up(t testing.TB, stateDir string, args ...string) Command {
	t.Helper()
	return Command{
		Path: Toolherd(t),
		Args: append([]string{"up", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--state-dir", stateDir, "--project", stateDir}, args...),
		Env:  []string{"HOME=" + stateDir},
		Dir:  stateDir,
	}
}

// Grpcurl builds the pinned grpcurl.
func Grpcurl(t testing.TB) Command {
	t.Helper()
	return Command{Path: built(t, buildGrpcurl)}
}

var buildGrpcurl = sync.OnceValues(func() (string, error) {
	return goBuild(recipe{dir: "tools", pkg: "github.com/fullstorydev/grpcurl/cmd/grpcurl", name: "grpcurl", env: []string{"GOWORK=off"}})
})

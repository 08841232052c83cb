package watchdog

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// name is argv[0] of the watchdog process. It differs from the service's, so that "killall toolherd" spares it.
const name = "toolherd-watchdog"

// ready is what the watchdog writes to its standard output once it ignores signals.
const ready = "ready\n"

const (
	minLook     = 2 * time.Second        // between two looks at what runs below the leaders
	lookPerEach = 100 * time.Millisecond // for each group, so that looking stays far below a percent of a core
	sweepRounds = 200
	sweepPause  = 10 * time.Millisecond
)

// IsWatchdog reports whether the process that was started with these arguments, os.Args, is to be a watchdog.
func IsWatchdog(args []string) bool { return len(args) > 0 && args[0] == name }

// Main is the watchdog process. It returns its exit code when the service has ended and what it left is killed.
//
// A program calls it before anything else:
//
//	func main() {
//		if watchdog.IsWatchdog(os.Args) {
//			os.Exit(watchdog.Main())
//		}
func Main() int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTSTP)
	rename("watchdog")
	if _, err := io.WriteString(os.Stdout, ready); err != nil {
		return 1
	}
	debug.FreeOSMemory() // what the program's initialisation used

	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if n := watch(os.Stdin); n > 0 {
		log.Warn("the service ended before its children did, killed what was left", "processes", n)
	}
	return 0
}

// group is one child as the watchdog knows it.
type group struct {
	pgid    int              // 0 between "start" and "group"
	streams []uint64         // inodes of the pipes it was given
	seen    map[process]bool // what ran below it, its own group aside
}

// watch keeps the table until r ends, then kills what is in it. It returns how many processes it killed then.
func watch(r io.Reader) int {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			lines <- s.Text()
		}
	}()
	groups := map[uint64]*group{}
	look := time.NewTimer(minLook)
	defer look.Stop()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return sweep(groups)
			}
			apply(groups, line)
		case <-look.C:
			for _, g := range groups {
				g.look()
			}
			look.Reset(max(minLook, time.Duration(len(groups))*lookPerEach))
		}
	}
}

// apply takes one line of the service. What it does not understand it ignores: it comes from the same program.
func apply(groups map[uint64]*group, line string) {
	verb, rest, _ := strings.Cut(line, " ")
	number, rest, _ := strings.Cut(rest, " ")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return
	}
	switch verb {
	case "start":
		g := &group{seen: map[process]bool{}}
		for inode := range strings.FieldsSeq(rest) {
			if n, err := strconv.ParseUint(inode, 10, 64); err == nil {
				g.streams = append(g.streams, n)
			}
		}
		groups[seq] = g
	case "group":
		if g, pgid := groups[seq], atoi(rest); g != nil && pgid > 1 {
			g.pgid = pgid
		}
	case "end":
		if g := groups[seq]; g != nil {
			// The service has killed the group; only those that left it may remain.
			for p := range g.seen {
				p.kill()
			}
			delete(groups, seq)
		}
	}
}

func startLine(seq uint64, streams []uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "start %d", seq)
	for _, inode := range streams {
		fmt.Fprintf(&b, " %d", inode)
	}
	b.WriteByte('\n')
	return b.String()
}

func groupLine(seq uint64, pgid int) string { return fmt.Sprintf("group %d %d\n", seq, pgid) }

func endLine(seq uint64) string { return fmt.Sprintf("end %d\n", seq) }

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// look remembers what runs below the leader, and forgets what has ended.
func (g *group) look() {
	for p := range g.seen {
		if !p.alive() {
			delete(g.seen, p)
		}
	}
	if g.pgid == 0 {
		return
	}
	for _, p := range descendants(g.pgid) {
		g.seen[p] = true
	}
}

// sweep kills until nothing is left of the groups, for a bounded time, and returns how many processes it killed.
func sweep(groups map[uint64]*group) int {
	killed := map[process]bool{}
	for range sweepRounds {
		left := remains(groups)
		for _, g := range groups {
			if g.pgid > 1 {
				_ = syscall.Kill(-g.pgid, syscall.SIGKILL)
			}
		}
		if len(left) == 0 {
			break
		}
		for p := range left {
			p.kill()
			killed[p] = true
		}
		<-time.After(sweepPause)
	}
	return len(killed)
}

package watchdog

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is a process for all time: numbers are used again, numbers with their start times are not.
type process struct {
	pid   int
	start uint64 // in clock ticks since boot
}

// stat is what /proc/PID/stat says.
type stat struct {
	state   byte
	pgrp    int
	session int
	start   uint64
}

func readStat(pid int) (stat, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	// The command name, in parentheses, may contain anything.
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return stat{}, false
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 20 {
		return stat{}, false
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return stat{}, false
	}
	return stat{state: f[0][0], pgrp: atoi(f[2]), session: atoi(f[3]), start: start}, true
}

func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

func (p process) alive() bool {
	s, ok := readStat(p.pid)
	return ok && s.start == p.start && !s.dead()
}

// kill kills p and no other process that got its number.
func (p process) kill() {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		if p.alive() {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if p.alive() {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// descendants returns the processes below pid.
func descendants(pid int) []process {
	var found []process
	below(pid, func(p process) bool {
		if slices.Contains(found, p) {
			return false
		}
		found = append(found, p)
		return true
	})
	return found
}

// below calls visit for the children of pid and, where visit returns true, for theirs.
func below(pid int, visit func(process) bool) {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	for _, thread := range entries(dir) {
		children, err := os.ReadFile(dir + "/" + thread + "/children")
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(children)) {
			child := atoi(field)
			if s, ok := readStat(child); ok && visit(process{child, s.start}) {
				below(child, visit)
			}
		}
	}
}

// entries returns the names in a directory, in no order; none if it cannot be read.
func entries(dir string) []string {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	names, _ := f.Readdirnames(-1)
	return names
}

// remains returns what is left of the groups: their members, those of their sessions, those that hold their
// streams, those seen before, and what runs below all these.
func remains(groups map[uint64]*group) map[process]bool {
	ids, streams := map[int]bool{}, map[uint64]bool{}
	left := map[process]bool{}
	add := func(p process) bool {
		if left[p] || spared(p.pid) {
			return false
		}
		left[p] = true
		return true
	}
	for _, g := range groups {
		if g.pgid > 1 {
			ids[g.pgid] = true
		}
		for _, inode := range g.streams {
			streams[inode] = true
		}
		for p := range g.seen {
			if p.alive() && add(p) {
				below(p.pid, add)
			}
		}
	}
	everyProcess(func(pid int, s stat) {
		if ids[s.pgrp] || ids[s.session] || holds(pid, streams) {
			if add(process{pid, s.start}) {
				below(pid, add)
			}
		}
	})
	return left
}

// spared reports whether a process is this one, its parent, which is the service while that lives and holds the
// other ends of the streams, or init.
func spared(pid int) bool { return pid <= 1 || pid == os.Getpid() || pid == os.Getppid() }

// everyProcess calls visit for each living process that is not spared.
func everyProcess(visit func(pid int, s stat)) {
	for _, name := range entries("/proc") {
		pid := atoi(name)
		if spared(pid) {
			continue
		}
		if s, ok := readStat(pid); ok && !s.dead() {
			visit(pid, s)
		}
	}
}

// holds reports whether the process has one of the pipes open.
func holds(pid int, streams map[uint64]bool) bool {
	if len(streams) == 0 {
		return false
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	for _, fd := range entries(dir) {
		link, err := os.Readlink(dir + "/" + fd)
		if err != nil {
			continue
		}
		inode, ok := strings.CutPrefix(link, "pipe:[")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSuffix(inode, "]"), 10, 64); err == nil && streams[n] {
			return true
		}
	}
	return false
}

// killHolders kills every other process that has one of the pipes open.
func killHolders(streams []uint64) {
	set := map[uint64]bool{}
	for _, inode := range streams {
		set[inode] = true
	}
	// A process of ours between fork and exec holds all our files: let there be none.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	everyProcess(func(pid int, s stat) {
		if holds(pid, set) {
			process{pid, s.start}.kill()
		}
	})
}

// streamsOf returns the inodes of those files that are pipes.
func streamsOf(files ...*os.File) []uint64 {
	var inodes []uint64
	for _, f := range files {
		var st unix.Stat_t
		rc, err := f.SyscallConn()
		if err != nil {
			continue
		}
		if err := rc.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			continue
		}
		inodes = append(inodes, st.Ino)
	}
	return inodes
}

// rename sets the name that ps and killall see.
func rename(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

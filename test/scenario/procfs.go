package scenario

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Proc is a process of the machine, as /proc shows it.
type Proc struct {
	PID, Parent, Group int
	Start              string // ticks since boot: together with PID it names the process for ever
	Command            string
}

// String is how a Proc appears in failures.
func (p Proc) String() string {
	return strconv.Itoa(p.PID) + " (parent " + strconv.Itoa(p.Parent) + ", group " + strconv.Itoa(p.Group) + ") " + p.Command
}

// Alive reports whether the process still runs; a zombie does not.
func (p Proc) Alive() bool {
	now, ok := process(p.PID)
	return ok && now.Start == p.Start
}

// processes lists what runs on the machine, zombies left out.
func processes() []Proc {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []Proc
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := process(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

// process reads /proc/PID/stat: "PID (name) state parent group …", the name may hold anything.
func process(pid int) (Proc, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return Proc{}, false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const startTime = 19 // field 22, counted from the one after the name
	if len(fields) <= startTime || fields[0] == "Z" || fields[0] == "X" {
		return Proc{}, false
	}
	p := Proc{PID: pid, Start: fields[startTime]}
	p.Parent, _ = strconv.Atoi(fields[1])
	p.Group, _ = strconv.Atoi(fields[2])
	if line, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil {
		p.Command = strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
	}
	return p, true
}

// withHome lists the processes whose environment began with this HOME.
func withHome(home string) []Proc {
	var found []Proc
	for _, p := range processes() {
		environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "environ"))
		if err != nil {
			continue // it has ended, or is another user's
		}
		for variable := range bytes.SplitSeq(environ, []byte{0}) {
			if string(variable) == "HOME="+home {
				found = append(found, p)
				break
			}
		}
	}
	return found
}

// Descendants lists what runs below a process, children before grandchildren.
func Descendants(pid int) []Proc {
	all := processes()
	below := []Proc{{PID: pid}}
	for i := 0; i < len(below); i++ {
		for _, p := range all {
			if p.Parent == below[i].PID {
				below = append(below, p)
			}
		}
	}
	return below[1:]
}

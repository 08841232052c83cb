package fake

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Plan says how one call after the other goes; the last step holds for all that follow. As text the steps stand between
// commas, each a word with optional arguments and an optional count:
//
//	busy*2,fail,succeed        503;retry=2*3,200        slow;for=2s
type Plan []Step

// Step is how one call goes.
type Step struct {
	Word string
	Args map[string]string
}

// ParsePlan reads a plan.
func ParsePlan(text string) (Plan, error) {
	var p Plan
	for part := range strings.SplitSeq(text, ",") {
		body, count, counted := strings.Cut(part, "*")
		n := 1
		if counted {
			var err error
			if n, err = strconv.Atoi(count); err != nil || n < 1 || n > 10_000 {
				return nil, fmt.Errorf("plan %q: %q is not a count from 1 to 10000", text, count)
			}
		}
		word, rest, _ := strings.Cut(body, ";")
		step := Step{Word: strings.TrimSpace(word)}
		if step.Word == "" {
			return nil, fmt.Errorf("plan %q: an empty step", text)
		}
		if rest != "" {
			step.Args = map[string]string{}
			for arg := range strings.SplitSeq(rest, ";") {
				key, value, ok := strings.Cut(arg, "=")
				if !ok || key == "" {
					return nil, fmt.Errorf("plan %q: argument %q is not of the form key=value", text, arg)
				}
				step.Args[key] = value
			}
		}
		for range n {
			p = append(p, step)
		}
	}
	return p, nil
}

// check returns what is wrong with a plan whose steps may have these words and arguments. A word "N" stands for every
// number, an argument with a colon at its end for a duration.
func (p Plan) check(words map[string][]string) error {
	for _, s := range p {
		args, ok := words[s.Word]
		if _, err := strconv.Atoi(s.Word); err == nil && !ok {
			args, ok = words["N"]
		}
		if !ok {
			return fmt.Errorf("unknown step %q", s.Word)
		}
		for key, value := range s.Args {
			switch {
			case slices.Contains(args, key):
			case slices.Contains(args, key+":"):
				if _, err := time.ParseDuration(value); err != nil {
					return fmt.Errorf("step %q: %s=%q is not a duration", s.Word, key, value)
				}
			default:
				return fmt.Errorf("step %q takes no argument %q", s.Word, key)
			}
		}
	}
	return nil
}

// duration returns the duration that an argument gives; 0 without one. The plan was checked.
func (s Step) duration(key string) time.Duration {
	d, _ := time.ParseDuration(s.Args[key])
	return d
}

// script hands out the steps of a plan, and of plans of its own for single keys.
type script struct {
	mu     sync.Mutex
	plan   Plan
	at     int
	keyed  map[string]*script
	byWord map[string][]string
}

func newScript(plan Plan, keyed map[string]Plan, byDefault string, words map[string][]string) (*script, error) {
	if len(plan) == 0 {
		plan = Plan{{Word: byDefault}}
	}
	if err := plan.check(words); err != nil {
		return nil, err
	}
	s := &script{plan: plan, keyed: map[string]*script{}, byWord: words}
	for key, p := range keyed {
		inner, err := newScript(p, nil, byDefault, words)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		s.keyed[key] = inner
	}
	return s, nil
}

// next returns the step for the next call with this key.
func (s *script) next(key string) Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	if inner := s.keyed[key]; inner != nil {
		return inner.next("")
	}
	step := s.plan[min(s.at, len(s.plan)-1)]
	s.at++
	return step
}

// set replaces the plan of a key, or the common one where key is empty, and begins with its first step.
func (s *script) set(key string, plan Plan) error {
	if len(plan) == 0 {
		return errors.New("a plan needs a step")
	}
	inner, err := newScript(plan, nil, "", s.byWord)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if key != "" {
		s.keyed[key] = inner
		return nil
	}
	s.plan, s.at = plan, 0
	return nil
}

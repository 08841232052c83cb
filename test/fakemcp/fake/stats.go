package fake

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Stats is what the server has seen so far. The tool `stats` and the path /fake/stats return it.
type Stats struct {
	// Requests and Notifications count messages by method, Calls counts tools/call by tool. A request
	// is counted before it is answered, the one that asks for the stats included.
	Requests      map[string]int `json:"requests"`
	Notifications map[string]int `json:"notifications"`
	Calls         map[string]int `json:"calls"`
	// Cancelled lists the running calls that the client gave up, in order.
	Cancelled []Cancelled `json:"cancelled"`
	// LateCancels counts notifications/cancelled for requests that were not running.
	LateCancels int `json:"late_cancels"`
	// InFlight is the number of running requests, the one that asks for the stats included.
	InFlight int `json:"in_flight"`
	// SessionsOpened counts initialize, SessionsClosed DELETE and ended streams, SessionsLost the ones
	// that the server forgot on purpose.
	SessionsOpened int `json:"sessions_opened"`
	SessionsClosed int `json:"sessions_closed"`
	SessionsLost   int `json:"sessions_lost"`
	// Connections counts accepted TCP connections, HTTPRequests requests by HTTP method, Streams the
	// standing streams that are open.
	Connections  int            `json:"connections"`
	HTTPRequests map[string]int `json:"http_requests"`
	Streams      int            `json:"streams"`
	// Client and Version are what the last client told about itself.
	Client  json.RawMessage `json:"client,omitempty"`
	Version string          `json:"version,omitempty"`
	// Violations are breaches of the protocol by the client, in words.
	Violations []string `json:"violations"`
}

// Cancelled is a call that the client gave up.
type Cancelled struct {
	Tool      string          `json:"tool,omitempty"`
	Method    string          `json:"method"`
	RequestID json.RawMessage `json:"request_id"`
	Reason    string          `json:"reason,omitempty"`
	By        string          `json:"by"` // notification, or disconnect on 2026-07-28 over HTTP
}

func newStats() Stats {
	return Stats{
		Requests: map[string]int{}, Notifications: map[string]int{}, Calls: map[string]int{}, HTTPRequests: map[string]int{},
		Cancelled: []Cancelled{}, Violations: []string{},
	}
}

// Stats returns a copy of the counts.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.stats
	c.Requests, c.Notifications, c.Calls = maps.Clone(c.Requests), maps.Clone(c.Notifications), maps.Clone(c.Calls)
	c.HTTPRequests = maps.Clone(c.HTTPRequests)
	c.Cancelled, c.Violations = slices.Clone(c.Cancelled), slices.Clone(c.Violations)
	return c
}

// count changes the counts under the lock.
func (s *Server) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}

func (s *Server) violated(format string, args ...any) {
	s.count(func(c *Stats) { c.Violations = append(c.Violations, fmt.Sprintf(format, args...)) })
}

func (s *Server) met(client json.RawMessage, version string) {
	s.count(func(c *Stats) { c.Client, c.Version = slices.Clone(client), version })
}

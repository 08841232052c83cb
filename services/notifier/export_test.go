package notifier

import "github.com/toolherd/toolherd/services/notifier/internal/delivery"

// Pushed returns the sinks that events are pushed to, with their limits.
func (s *Service) Pushed() []delivery.Sink { return s.sinks.pushed }

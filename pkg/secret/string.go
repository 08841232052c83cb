package secret

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
)

// String is a credential in memory. Every way of printing, logging or encoding it gives [Mask], or nothing if it is
// empty; [String.Reveal] is the only way to its value. The zero value is empty. Compare with [String.Equal]: the
// operator == compares identity, since the value stays behind a pointer where reflection prints an address only.
type String struct{ value *string }

// NewString returns value as a secret.
func NewString(value string) String {
	if value == "" {
		return String{}
	}
	return String{&value}
}

// Reveal returns the value, for the place that sends it.
func (s String) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsEmpty reports whether there is no value.
func (s String) IsEmpty() bool { return s.value == nil }

// Equal reports whether both hold the same value.
func (s String) Equal(other String) bool { return s.Reveal() == other.Reveal() }

// String returns [Mask], or "" for an empty secret.
func (s String) String() string {
	if s.value == nil {
		return ""
	}
	return Mask
}

// Format writes [String.String] whatever the verb and flags are.
func (s String) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue is what slog shows.
func (s String) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText encodes as [String.String], for every encoder that is not JSON's.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON encodes as the JSON string of [String.String].
func (s String) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalText takes text as the value, so that configuration files can hold secrets.
func (s *String) UnmarshalText(text []byte) error {
	*s = NewString(string(text))
	return nil
}

package notifier

import (
	"encoding/base64"
	"encoding/json"
	"slices"

	"github.com/toolherd/toolherd/pkg/fault"
)

const maxPageSize = 1000

// pageSize returns how many items a page may have.
func pageSize(asked int32, byDefault int) (int, error) {
	switch {
	case asked < 0:
		return 0, invalid("page_size", "must not be negative")
	case asked == 0:
		return byDefault, nil
	default:
		return min(int(asked), maxPageSize), nil
	}
}

// token is where a list goes on: a place in a list of one kind and filter. As text it is opaque.
type token struct {
	List   string   `json:"l"`
	Filter []string `json:"f,omitempty"`
	After  string   `json:"a"`
}

func (t token) String() string {
	b, _ := json.Marshal(t) // strings alone
	return base64.RawURLEncoding.EncodeToString(b)
}

// after returns the place that text names in the list that want describes; empty text is the beginning.
func after(field, text string, want token) (string, error) {
	if text == "" {
		return "", nil
	}
	var got token
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(b, &got) != nil || got.List != want.List || got.After == "" {
		return "", invalid(field, "is not one that was given out here: begin without it")
	}
	if !slices.Equal(got.Filter, want.Filter) {
		return "", invalid(field, "belongs to another request: begin without it, or ask for the same")
	}
	return got.After, nil
}

func invalid(field, description string) error {
	return fault.New(fault.InvalidArguments, "%s %s", field, description).
		WithViolations(fault.Violation{Field: field, Description: description})
}

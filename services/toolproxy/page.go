package toolproxy

import (
	"encoding/base64"
	"encoding/json"
	"slices"

	"github.com/toolherd/toolherd/pkg/fault"
)

const (
	maxPageSize = 1000
	// maxPageBytes keeps a page below 3 MiB, so that it reaches clients with gRPC's default limit of 4 MiB.
	maxPageBytes = 3<<20 - 64<<10
)

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

// token is where a page begins: behind the item with this key, in a list of the same kind and filter.
type token struct {
	List   string   `json:"l"`
	Filter []string `json:"f,omitempty"`
	After  []string `json:"a"`
}

func (t token) String() string {
	b, _ := json.Marshal(t) // strings alone
	return base64.RawURLEncoding.EncodeToString(b)
}

// after returns the key behind which the page that text asks for begins, or nil for the first. want is the list that is
// being paged.
func after(text string, want token) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	var got token
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(b, &got) != nil || got.List != want.List || len(got.After) != len(want.After) {
		return nil, invalid("page_token", "is not one that this list has given")
	}
	if !slices.Equal(got.Filter, want.Filter) {
		return nil, invalid("page_token", "belongs to a list with another filter; begin with the first page")
	}
	return got.After, nil
}

func invalid(field, description string) error {
	return fault.New(fault.InvalidArguments, "%s %s", field, description).
		WithViolations(fault.Violation{Field: field, Description: description})
}

package authn

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/toolherd/toolherd/pkg/internal/reread"
	"github.com/toolherd/toolherd/pkg/spelling"
)

// tokenPrefix marks a token as ours, so that secret scanners can find one that leaked.
const tokenPrefix = "thd_"

// NewToken returns a fresh token of 256 random bits and the hex SHA-256 that stands for it in tokens.yaml.
func NewToken() (token, sha256Hex string) {
	random := make([]byte, 32)
	rand.Read(random) // never fails
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(random)
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}

// Tokens recognises callers by the tokens of a tokens.yaml, which it follows: an edit is in force a second later.
// An edit that cannot be read leaves the last good content in force and is logged at WARN. Its methods may be called
// concurrently.
//
//	# tokens.yaml
//	- { name: ci, sha256: 9f86d0…, roles: [agent], user_id: alice }
//	- { name: taskworker, sha256: 60303a…, roles: [worker] }
type Tokens struct {
	file *reread.Value[table]
}

// table maps the SHA-256 of a token to its owner. The look-up need not take constant time: its timing can tell
// something about the hash of what was presented, and whoever presents it knows that already; to learn a stored hash
// byte by byte one would have to choose texts by their SHA-256.
type table map[[sha256.Size]byte]*Principal

// OpenTokens reads the file and fails where it is not usable.
func OpenTokens(path string, log *slog.Logger) (*Tokens, error) {
	file, err := reread.Open(reread.Source[table]{
		What:  "tokens file",
		Paths: []string{path},
		Parse: func(contents [][]byte) (table, error) { return parseTokens(contents[0]) },
		Log:   log,
	})
	if err != nil {
		return nil, err
	}
	return &Tokens{file: file}, nil
}

// Lookup returns the owner of the token. The caller must not change it.
func (t *Tokens) Lookup(token string) (*Principal, bool) {
	p, ok := t.file.Get()[sha256.Sum256([]byte(token))]
	return p, ok
}

// entryKeys returns the keys of an entry, in the order of messages.
func entryKeys() []string { return []string{"name", "sha256", "roles", "user_id", "act_as"} }

func parseTokens(content []byte) (table, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) == 0 {
		return nil, errors.New("is empty: write [] for no tokens, or add one with `toolherd token new`")
	}
	list := doc.Content[0]
	if list.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: want a list of tokens", list.Line)
	}
	t := make(table, len(list.Content))
	names := make(map[string]int, len(list.Content))
	for _, node := range list.Content {
		sum, p, err := parseToken(node)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", node.Line, err)
		}
		if line, ok := names[p.Name]; ok {
			return nil, fmt.Errorf("line %d: name %q is taken by the token in line %d", node.Line, p.Name, line)
		}
		if other, ok := t[sum]; ok {
			return nil, fmt.Errorf("line %d: tokens %q and %q have the same sha256", node.Line, other.Name, p.Name)
		}
		names[p.Name] = node.Line
		t[sum] = p
	}
	return t, nil
}

func parseToken(node *yaml.Node) (sum [sha256.Size]byte, p *Principal, err error) {
	if node.Kind != yaml.MappingNode {
		return sum, nil, errors.New("want {name, sha256, roles, user_id?, act_as?}")
	}
	if err := checkKeys(node); err != nil {
		return sum, nil, err
	}
	var entry struct {
		Name   string   `yaml:"name"`
		SHA256 string   `yaml:"sha256"`
		Roles  []string `yaml:"roles"`
		UserID *string  `yaml:"user_id"`
		ActAs  *string  `yaml:"act_as"`
	}
	if err := node.Decode(&entry); err != nil {
		return sum, nil, err
	}
	if entry.Name == "" {
		return sum, nil, errors.New("token without a name")
	}
	digest, err := hex.DecodeString(entry.SHA256)
	if err != nil || len(digest) != sha256.Size {
		return sum, nil, fmt.Errorf("token %q: sha256 must be 64 hex digits, as `toolherd token new` prints them", entry.Name)
	}
	p = &Principal{Name: entry.Name, Authenticated: true}
	if p.Roles, err = parseRoles(entry.Roles); err != nil {
		return sum, nil, fmt.Errorf("token %q: %w", entry.Name, err)
	}
	if entry.ActAs != nil {
		if *entry.ActAs != "any" {
			return sum, nil, fmt.Errorf("token %q: act_as %q: the only value is `any`", entry.Name, *entry.ActAs)
		}
		p.ActAsAny = true
	}
	if entry.UserID != nil {
		if p.ActAsAny {
			return sum, nil, fmt.Errorf("token %q: user_id and act_as exclude each other", entry.Name)
		}
		if *entry.UserID == "" {
			return sum, nil, fmt.Errorf("token %q: user_id is empty: leave it out for a token of user `default`", entry.Name)
		}
		if err := checkID("user_id", *entry.UserID); err != nil {
			return sum, nil, fmt.Errorf("token %q: %w", entry.Name, err)
		}
		p.UserID = *entry.UserID
	}
	return [sha256.Size]byte(digest), p, nil
}

func parseRoles(names []string) ([]Role, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("no roles: want one or more of %s", roleNames())
	}
	var roles []Role
	for _, name := range names {
		r := Role(name)
		if !slices.Contains(Roles(), r) {
			return nil, fmt.Errorf("unknown role %q: want one of %s", name, roleNames())
		}
		if !slices.Contains(roles, r) {
			roles = append(roles, r)
		}
	}
	return roles, nil
}

func roleNames() string {
	var names []string
	for _, r := range Roles() {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}

// checkKeys refuses keys that are unknown or written twice: the decoder would pass over the one and let the last of
// the other win.
func checkKeys(node *yaml.Node) error {
	keys, seen := entryKeys(), map[string]bool{}
	for i := 0; i < len(node.Content); i += 2 {
		key := node.Content[i].Value
		if !slices.Contains(keys, key) {
			if near := spelling.Nearest(strings.ToLower(key), keys, 2); near != "" {
				return fmt.Errorf("unknown key %q: did you mean %q?", key, near)
			}
			return fmt.Errorf("unknown key %q: want %s", key, strings.Join(keys, ", "))
		}
		if seen[key] {
			return fmt.Errorf("key %q is given twice", key)
		}
		seen[key] = true
	}
	return nil
}

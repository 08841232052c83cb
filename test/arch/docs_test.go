package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolherd/toolherd/pkg/serverconfig"
)

var jsonBlock = regexp.MustCompile("(?s)```json\n(.*?)```")

// Every example of server entries, in documents and in examples/, loads without an error or a warning.
func TestExamplesOfServerEntriesAreValid(t *testing.T) {
	found := 0
	check := func(name string, content []byte) {
		if !strings.Contains(string(content), "mcpServers") {
			return
		}
		found++
		doc, problem := serverconfig.ParseDocument(content)
		if problem != nil {
			t.Errorf("%s: %s", name, problem.Message)
			return
		}
		for _, s := range doc.Servers {
			if s.Problem != nil {
				t.Errorf("%s: server %s: %s", name, s.Name, s.Problem.Message)
				continue
			}
			if _, problems := serverconfig.Decode(s.Name, s.JSON); len(problems) > 0 {
				t.Errorf("%s: server %s: %v", name, s.Name, problems)
			}
		}
	}
	for _, name := range listFiles(t, "*.md", "examples/*.json") {
		content, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".json") {
			check(name, content)
			continue
		}
		for _, block := range jsonBlock.FindAllSubmatch(content, -1) {
			check(name, block[1])
		}
	}
	if found < 3 {
		t.Fatalf("only %d examples found", found)
	}
}

// A link inside the repository leads somewhere.
func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)(?:#[^)]*)?\)`)
	for _, name := range listFiles(t, "*.md") {
		content, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(content), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root(t), filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", name, m[1])
			}
		}
	}
}

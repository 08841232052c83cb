package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheCommandRecordsAndTakesNewPlans(t *testing.T) {
	records := filepath.Join(t.TempDir(), "records.jsonl")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-control", "127.0.0.1:0", "-records", records, "-deliveries", "500", "-path", "/b=204"}, write)
		write.Close()
	}()
	lines := bufio.NewScanner(read)
	addr := map[string]string{}
	for len(addr) < 3 && lines.Scan() {
		kind, rest, _ := strings.Cut(lines.Text(), " ")
		for pair := range strings.FieldsSeq(rest) {
			name, value, _ := strings.Cut(pair, "=")
			addr[kind+" "+name] = value
		}
	}
	post := func(url string, want int) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", url, resp.StatusCode, want)
		}
	}
	hooks, control := "http://"+addr["listening http"], "http://"+addr["control http"]
	post(hooks+"/a", 500)
	post(hooks+"/b", 204)
	post(control+"/deliveries?plan=202&path=/b", 200)
	post(control+"/deliveries?plan=201", 200)
	post(control+"/deliveries?plan=nonsense", 400)
	post(control+"/runs?plan=busy&thread=t", 200)
	post(hooks+"/a", 201)
	post(hooks+"/b", 202)
	cancel()
	for lines.Scan() {
		t.Errorf("unexpected line %q", lines.Text())
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	content, err := os.ReadFile(records)
	if err != nil || strings.Count(string(content), `"kind":"delivery"`) != 4 || !strings.Contains(string(content), `"http_status":202`) {
		t.Errorf("records are %q, %v", content, err)
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-runs", "x*"}, {"-runs", "explode"}, {"-thread", "t"}, {"-path", "/a=x"}, {"-key", "secret"}, {"more"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}

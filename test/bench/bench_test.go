package bench

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/test/partners"
)

var (
	roundCount = flag.Int("rounds", 1, "how many interleaved rounds each row takes")
	perRound   = flag.Duration("per", 100*time.Millisecond, "how long a subject is loaded per round")
	withPeers  = flag.Bool("peers", false, "also measure the proxies from npm")
)

const payload = "The quick brown fox jumps over the lazy dog."

func TestTable(t *testing.T) {
	rep := &report{}
	echo := partners.GoProgram(t, "test/bench/echoserver")
	b := bed{
		echo:    echo,
		echoURL: partners.StartListening(t, echo.With("-http", "127.0.0.1:0")).URL,
		noop:    startNoop(t),
	}
	b.herd = startHerd(t, b)
	t.Run("stdio", func(t *testing.T) { rowsCall(t, rep, b, "stdio") })
	t.Run("http", func(t *testing.T) { rowsCall(t, rep, b, "streamable HTTP") })
	t.Run("large result", func(t *testing.T) { rowLarge(t, rep, b) })
	if *withPeers {
		t.Run("peers", func(t *testing.T) { rowPeers(t, rep, b) })
	}
	t.Run("submit", func(t *testing.T) {
		rowSubmit(t, rep, b, "SQLite")
		rowSubmit(t, rep, b, "Postgres", "--postgres", dbtest.DSN(t, dbtest.Unmigrated()))
	})
	t.Run("polls", func(t *testing.T) { rowPolls(t, rep, b) })
	t.Run("worker", func(t *testing.T) { rowWorkerPolls(t, rep) })
	t.Run("takeover", func(t *testing.T) { rowTakeover(t, rep) })
	t.Run("idle worker", func(t *testing.T) { rowIdle(t, rep) })
	t.Run("webhook", func(t *testing.T) { rowWebhook(t, rep) })
	t.Run("publish", func(t *testing.T) { rowPublish(t, rep, b) })
	t.Run("start", func(t *testing.T) { rowStart(t, rep) })
	t.Run("memory", func(t *testing.T) { rowMemory(t, rep) })
	fmt.Printf("\n%d rounds of %v, ratios are medians over the rounds\n%s\n", *roundCount, *perRound, rep)
}

// bed is what the rows share: the server at the far end, Toolherd in front of it, and a gRPC server that does nothing.
type bed struct {
	echo    partners.Command
	echoURL string
	noop    subject
	herd    *herd
}

// direct is the SDK's own client on a transport.
func (b bed) direct(t *testing.T, transport string) *mcp.ClientSession {
	t.Helper()
	if transport == "stdio" {
		return partners.Direct(t, b.echo, "")
	}
	return partners.DirectHTTP(t, b.echoURL, "")
}

func (b bed) tool(transport string) string {
	if transport == "stdio" {
		return "stdio_echo"
	}
	return "http_echo"
}

func sdkEcho(name string, s *mcp.ClientSession, tool string) subject {
	return subject{name, func(ctx context.Context) error {
		res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"text": payload}})
		if err != nil {
			return err
		}
		if got, ok := res.Content[0].(*mcp.TextContent); !ok || !strings.Contains(got.Text, payload) {
			return fmt.Errorf("wrong answer %v", res.Content)
		}
		return nil
	}}
}

func rowsCall(t *testing.T, rep *report, b bed, transport string) {
	subjects := []subject{
		sdkEcho("direct", b.direct(t, transport), "echo"),
		b.noop,
		b.herd.echo("herd", b.tool(transport)),
	}
	one := rounds(t, subjects, 1)
	base := func(i int) time.Duration { return one["direct"][i].p50 + one["noop"][i].p50 }
	rep.add(row{
		what:     "call over " + transport + ", p50 at 1, over direct + gRPC no-op",
		measured: ms(median(column(one["herd"], p50))),
		baseline: ms(median(column(one["direct"], p50))) + " + " + ms(median(column(one["noop"], p50))),
		ratio:    fmt.Sprintf("%.2f x", ratio(t, *roundCount, func(i int) float64 { return float64(one["herd"][i].p50) / float64(base(i)) })),
		goal:     "<= 1.1 x",
	})
	many := rounds(t, []subject{subjects[0], subjects[2]}, 16)
	rep.add(row{
		what:     "call over " + transport + ", throughput at 16, over direct",
		measured: perSecondText(median(column(many["herd"], throughput))),
		baseline: perSecondText(median(column(many["direct"], throughput))),
		ratio:    fmt.Sprintf("%.2f x", ratio(t, *roundCount, func(i int) float64 { return many["herd"][i].perSecond / many["direct"][i].perSecond })),
		goal:     map[string]string{"stdio": ">= 0.85 x", "streamable HTTP": ">= 1.0 x"}[transport],
	})
}

const large = 1 << 20

func rowLarge(t *testing.T, rep *report, b bed) {
	session := b.direct(t, "stdio")
	got := rounds(t, []subject{
		{"direct", func(ctx context.Context) error {
			res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "big", Arguments: map[string]any{"bytes": large}})
			if err != nil {
				return err
			}
			if c, ok := res.Content[0].(*mcp.TextContent); !ok || len(c.Text) != large {
				return fmt.Errorf("wrong answer")
			}
			return nil
		}},
		b.herd.big("herd", "stdio_big", large),
	}, 1)
	rep.add(row{
		what:     "1 MiB result over stdio, view JSON, p50 at 1, over direct",
		measured: ms(median(column(got["herd"], p50))),
		baseline: ms(median(column(got["direct"], p50))),
		ratio:    fmt.Sprintf("%.2f x", ratio(t, *roundCount, func(i int) float64 { return float64(got["herd"][i].p50) / float64(got["direct"][i].p50) })),
		goal:     "<= 1.0 x",
	})
}

// rowPeers loads the npm proxies in front of the same stdio server, each with the SDK's client, and Toolherd with its own.
func rowPeers(t *testing.T, rep *report, b bed) {
	subjects := []subject{
		b.herd.echo("herd", "stdio_echo"),
		sdkEcho("mcp-proxy", partners.DirectHTTP(t, partners.MCPProxy(t, b.echo), ""), "echo"),
		sdkEcho("supergateway", partners.DirectHTTP(t, partners.Supergateway(t, b.echo), ""), "echo"),
		sdkEcho("mcp-hub", partners.DirectSSE(t, partners.MCPHub(t, b.echo)), "backend__echo"),
		sdkEcho("mcp-remote", partners.Direct(t, partners.MCPRemote(t, b.echoURL), ""), "echo"),
	}
	got := rounds(t, subjects, 16)
	best, bestName := 0.0, ""
	for _, s := range subjects[1:] {
		v := median(column(got[s.name], throughput))
		rep.add(row{what: "  " + s.name + ", throughput at 16", baseline: perSecondText(v)})
		if v > best {
			best, bestName = v, s.name
		}
	}
	rep.add(row{
		what:     "throughput at 16, over the best npm proxy",
		measured: perSecondText(median(column(got["herd"], throughput))),
		baseline: perSecondText(best) + " " + bestName,
		ratio:    fmt.Sprintf("%.2f x", ratio(t, *roundCount, func(i int) float64 { return got["herd"][i].perSecond / got[bestName][i].perSecond })),
		goal:     ">= 2.5 x",
	})
}

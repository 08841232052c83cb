package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/stack"
	"github.com/toolherd/toolherd/pkg/authn"
	"github.com/toolherd/toolherd/pkg/config"
	"github.com/toolherd/toolherd/pkg/version"
)

func newVersion(s Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  noArgs("no argument"),
		RunE: func(*cobra.Command, []string) error {
			if err := checkOutput(output); err != nil {
				return usageError{err}
			}
			if output == outputTable {
				_, err := fmt.Fprintf(s.Out, "toolherd %s %s %s/%s\n", version.String(), version.Go(), runtime.GOOS, runtime.GOARCH)
				return err
			}
			raw, err := json.Marshal(map[string]string{
				"version": version.String(), "go": version.Go(), "os": runtime.GOOS, "arch": runtime.GOARCH,
			})
			if err != nil {
				return err
			}
			return printJSON(s.Out, raw)
		},
	}
	addOutput(cmd, &output)
	return cmd
}

func addOutput(cmd *cobra.Command, form *string) {
	cmd.Flags().StringVarP(form, "output", "o", outputTable, "table or json")
}

func newToken(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make tokens for callers",
		Args:  noArgs("a subcommand, such as new"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var name, userID, output string
	var roles []string
	var actAsAny bool
	create := &cobra.Command{
		Use:   "new",
		Short: "Make a token: the token itself is shown once, its entry goes into tokens.yaml",
		Example: `  toolherd token new --name ci --role agent
  toolherd token new --name ops --role operator --role agent --act-as-any`,
		Args: noArgs("no argument"),
		RunE: func(*cobra.Command, []string) error {
			if err := checkOutput(output); err != nil {
				return usageError{err}
			}
			entry, err := tokenEntry(name, roles, userID, actAsAny)
			if err != nil {
				return usageError{err}
			}
			token, hash := authn.NewToken()
			if output == outputJSON {
				shown := map[string]any{"token": token, "name": name, "sha256": hash, "roles": roles, "user_id": userID}
				if actAsAny {
					shown["act_as"] = "any"
				}
				raw, err := json.Marshal(shown)
				if err != nil {
					return err
				}
				return printJSON(s.Out, raw)
			}
			_, err = fmt.Fprintf(s.Out, "token: %s\n\nIt is shown this once. Add its entry to the file that auth.tokens_file names:\n\n%s", token,
				strings.ReplaceAll(entry, "HASH", hash))
			return err
		},
	}
	create.Flags().StringVar(&name, "name", "", "what the token is called in logs (required)")
	create.Flags().StringArrayVar(&roles, "role", []string{"agent"}, "agent, operator, worker, toolproxy or notifier; repeatable")
	create.Flags().StringVar(&userID, "user-id", "", "the token speaks for this user alone")
	create.Flags().BoolVar(&actAsAny, "act-as-any", false, "the token may speak for any user")
	addOutput(create, &output)
	cmd.AddCommand(create)
	return cmd
}

func tokenEntry(name string, roles []string, userID string, actAsAny bool) (string, error) {
	if name == "" || strings.ContainsAny(name, "\"\\") || strings.ContainsFunc(name, unicode.IsControl) {
		return "", fmt.Errorf("--name is %q, want a name without quotes and control characters", name)
	}
	if len(userID) > authn.MaxScopeBytes || strings.ContainsFunc(userID, unicode.IsControl) {
		return "", fmt.Errorf("--user-id is %q, want at most %d bytes without control characters", userID, authn.MaxScopeBytes)
	}
	if userID != "" && actAsAny {
		return "", fmt.Errorf("--user-id and --act-as-any exclude each other: leave one out")
	}
	for _, r := range roles {
		if !slices.Contains(authn.Roles(), authn.Role(r)) {
			return "", fmt.Errorf("--role is %q, want one of %v", r, authn.Roles())
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "- name: %q\n  sha256: HASH\n  roles: [%s]\n", name, strings.Join(roles, ", "))
	if userID != "" {
		fmt.Fprintf(&b, "  user_id: %q\n", userID)
	}
	if actAsAny {
		b.WriteString("  act_as: any\n")
	}
	return b.String(), nil
}

func newMigrate(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database to the schema of this version; run it before the services of a split deployment",
		Args:  noArgs("no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd, s, clientBase())
			if err != nil {
				return err
			}
			return stack.Migrate(cmd.Context(), cfg, s.Err)
		},
	}
	config.Register(cmd.Flags(), clientBase(), "postgres", "state-dir", "log-level", "log-file")
	return cmd
}

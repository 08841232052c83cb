package dbtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// binaries are the two programs that make and run a cluster.
type binaries struct{ initdb, postgres string }

// findBinaries looks where the package doc says. With forOthers another user must be able to run what npm installs.
func findBinaries(ctx context.Context, forOthers bool) (binaries, error) {
	if dir := os.Getenv("TOOLHERD_TEST_POSTGRES_BIN"); dir != "" {
		b, ok := binariesIn(dir)
		if !ok {
			return b, fmt.Errorf("TOOLHERD_TEST_POSTGRES_BIN is %s, which has no initdb and postgres", dir)
		}
		return b, nil
	}
	initdb, initdbErr := exec.LookPath("initdb")
	postgres, postgresErr := exec.LookPath("postgres")
	if initdbErr == nil && postgresErr == nil {
		return binaries{initdb: initdb, postgres: postgres}, nil
	}
	if b, ok := installedBinaries(); ok {
		return b, nil
	}
	dir, err := npmBinaries(ctx, forOthers)
	if err != nil {
		return binaries{}, fmt.Errorf("there is no PostgreSQL server on this machine (%w): install one, as by `apt-get install postgresql`, "+
			"or set TOOLHERD_TEST_POSTGRES to the DSN of a running one", err)
	}
	b, ok := binariesIn(dir)
	if !ok {
		return b, errors.New(dir + " of the npm package has no initdb and postgres")
	}
	return b, nil
}

func binariesIn(dir string) (binaries, bool) {
	b := binaries{initdb: filepath.Join(dir, "initdb"), postgres: filepath.Join(dir, "postgres")}
	for _, program := range []string{b.initdb, b.postgres} {
		if info, err := os.Stat(program); err != nil || info.IsDir() || info.Mode().Perm()&0o111 == 0 {
			return binaries{}, false
		}
	}
	return b, true
}

// installedBinaries returns the newest of those that a distribution keeps off the PATH.
func installedBinaries() (binaries, bool) {
	var newest binaries
	newestVersion := -1
	digits := regexp.MustCompile(`\d+`)
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",         // Debian
		"/usr/pgsql-*/bin",                  // PGDG on Red Hat
		"/usr/libexec/postgresql*",          // Alpine
		"/usr/lib/postgresql*/bin",          // SUSE
		"/usr/local/pgsql/bin",              // built from source
		"/opt/homebrew/opt/postgresql*/bin", // Homebrew
		"/usr/local/opt/postgresql*/bin",
	} {
		found, _ := filepath.Glob(pattern) // fails only for a bad pattern
		for _, dir := range found {
			b, ok := binariesIn(dir)
			version, _ := strconv.Atoi(digits.FindString(dir)) // none counts as 0
			if ok && version > newestVersion {
				newest, newestVersion = b, version
			}
		}
	}
	return newest, newestVersion >= 0
}

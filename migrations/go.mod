module github.com/toolherd/toolherd/migrations

go 1.26.0

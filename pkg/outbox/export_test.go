package outbox

// TakePostgresSQL is what TakePostgres runs.
const TakePostgresSQL = takePostgresSQL

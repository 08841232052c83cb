package pgstore

// HeadSQL is what Head runs.
const HeadSQL = headSQL

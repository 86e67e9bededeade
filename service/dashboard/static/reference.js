// Starts Swagger UI on the document that the service serves. Nothing is fetched from, or sent, elsewhere.
"use strict";
SwaggerUIBundle({
  url: "/v1/openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  docExpansion: "none",
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
  syntaxHighlight: { activated: false },
  // Its title is an h1, its groups are h3, and its schemas an h4: for a screen reader, no level is missing.
  onComplete: () => document.querySelectorAll(".opblock-tag, .models h4").forEach((group) => group.setAttribute("aria-level", "2")),
});
